//! A controller that dies in the middle of its work.

use forkd_protocol::rest::{SandboxInfo, SnapshotInfo};

use crate::support::{
    Children, IMAGE, LIST, MONITORS, Snapshot, alone, bare, crash, each, eventually, forkd, get, host_sh,
    numpy, store_root, together,
};

#[test]
fn a_new_controller_finds_what_runs_and_removes_what_died() {
    let _world = alone();
    let children = Children::fork(numpy(), 4);
    each(&children, |child| child.eval("kept = __import__('os').getpid()"));
    let (alive, dead) = children.split_at(3);
    crash(&[dead[0].info.pid.unwrap()]);
    let listed: Vec<SandboxInfo> = forkd(&["--json", "ls"]).ok().parsed();
    for child in alive {
        assert_eq!(listed.iter().find(|s| s.id == child.id), Some(&child.info));
        assert_eq!(child.value("kept == __import__('os').getpid()"), true);
        assert_eq!(child.sh("hostname"), child.id);
    }
    assert!(listed.iter().all(|s| s.id != dead[0].id || s.state == "ended"), "{listed:?}");
    assert_eq!(host_sh(&format!("ls {}/run/{} 2>/dev/null || true", store_root(), dead[0].id)), "");
    forkd(&["kill", "--all"]).ok();
    assert_eq!(host_sh(MONITORS), "0");
    assert_eq!(Children::fork(numpy(), 1)[0].value("6 * 7"), 42);
}

#[test]
fn a_snapshot_that_was_cut_off_leaves_nothing() {
    let _world = alone();
    let snapshot = Snapshot::named("e2e-cut-off");
    let files = || host_sh(&format!("cd {}; {LIST} run staging snapshots layers; {MONITORS}", store_root()));
    let before = files();
    std::thread::scope(|scope| {
        let making = scope.spawn(|| forkd(&["snapshot", "--image", IMAGE, "--tag", &snapshot.tag]));
        eventually("its parent runs", || (files() != before && host_sh(MONITORS) == "1").then_some(()));
        crash(&[]);
        assert_ne!(making.join().unwrap().code, Some(0));
    });
    let snapshots: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
    assert!(snapshots.iter().all(|s| s.tag != snapshot.tag), "{snapshots:?}");
    assert_eq!(files(), before);
}

/// What a controller does before it is killed in the middle of a branch: has the monitor guard the workload, and the
/// agent freeze it.
const FREEZE: &str = r#"
    use IO::Socket::UNIX;
    my $run = shift;
    my $control = IO::Socket::UNIX->new("$run/control.sock") or die $!;
    my $guard = q({"Guard":{"within_ms":3000}});
    print $control pack("V", length $guard), $guard;
    $control->flush;
    read $control, my $length, 4;
    read $control, my $reply, unpack("V", $length);
    die $reply unless $reply =~ /Done/;
    my $agent = IO::Socket::UNIX->new("$run/vsock.sock") or die $!;
    my $body = q({"timeout_ms":60000});
    print $agent "CONNECT 49983\nPOST /forkd/v1/freeze HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n",
        "Content-Type: application/json\r\nContent-Length: ", length $body, "\r\n\r\n$body";
    $agent->flush;
    print <$agent>;
"#;

#[test]
fn a_workload_that_a_dead_controller_froze_is_thawed_by_its_monitor() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    child.sh("setsid sh -c 'while :; do echo >>/ticks; sleep 0.01; done' >/dev/null 2>&1 &");
    let run = format!("{}/run/{}", store_root(), child.id);
    let frozen = host_sh(&format!("perl -e '{FREEZE}' {run}"));
    assert!(frozen.contains("200 OK"), "{frozen}");
    let ticks =
        || Some(child.exec(&["wc", "-c", "/ticks"])).filter(|ran| ran.code == Some(0)).map(|ran| ran.text());
    let thawed = eventually("the workload runs again", ticks);
    eventually("what ran before goes on", || ticks().filter(|now| *now != thawed));
}
