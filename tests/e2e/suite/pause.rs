//! Sandboxes that are taken to the disk and go on later.

use serde_json::json;

use forkd_protocol::rest::SandboxInfo;

use crate::support::{
    Child, Children, LIST, Snapshot, alone, crash, eventually, forkd, full_pool, get, host_sh, numpy, post,
    send, store_root, together,
};

/// A counter that a process of the sandbox writes down without end.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >/count.new; mv /count.new /count; done";
/// One that sleeps, so that a timer is pending at any moment.
const TICK: &str = "n=0; while sleep 0.2; do n=$((n+1)); echo $n >/tick.new; mv /tick.new /tick; done";

fn number(child: &Child, path: &str) -> u64 {
    child.sh(&format!("cat {path}")).trim().parse().unwrap()
}

fn goes_on(child: &Child, path: &str) {
    let before = number(child, path);
    eventually(&format!("{path} goes on"), || (number(child, path) > before).then_some(()));
}

fn pause(child: &Child) -> SandboxInfo {
    let paused: Vec<SandboxInfo> = forkd(&["--json", "pause", &child.id]).ok().parsed();
    assert_eq!((paused[0].state.as_str(), paused[0].pid), ("paused", None));
    paused[0].clone()
}

fn resume(child: &Child) -> SandboxInfo {
    let resumed: Vec<SandboxInfo> = forkd(&["--json", "resume", &child.id]).ok().parsed();
    assert_eq!(resumed[0].state, "running");
    resumed[0].clone()
}

fn is_there(pid: u32) -> bool {
    host_sh(&format!("grep -c VmRSS /proc/{pid}/status 2>/dev/null || true")) == "1"
}

#[test]
fn processes_and_the_warm_interpreter_go_on_under_the_same_identity() {
    let _world = together();
    let children = Children::fork_with(numpy(), 1, &["--env", "KEPT=yes"]);
    let child = &children[0];
    child.sh(&format!(
        "setsid sh -c '{COUNT}' >/dev/null 2>&1 & setsid sh -c '{TICK}' >/dev/null 2>&1 &
         until [ -s /count ] && [ -s /tick ]; do sleep 0.1; done"
    ));
    child.eval("kept = numpy.arange(1000); pid = __import__('os').getpid()");
    child.eval("generator = random.Random(7); first = generator.random()");
    let who = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; echo $KEPT";
    let (identity, counted) = (child.sh(who), number(child, "/count"));

    for _ in 0..2 {
        let before = child.seen().unwrap().pid.unwrap();
        assert!(is_there(before));
        pause(child);
        assert!(!is_there(before), "its memory is given back");
        let refused = forkd(&["exec", &child.id, "--", "true"]);
        assert!(refused.stderr.contains(&format!("forkd resume {}", child.id)), "{}", refused.stderr);
        post(&child.path("eval"), json!({ "code": "1" })).with_status(409);
        post(&child.path("branch"), json!({})).with_status(409);
        post(&child.path("ping"), json!({})).with_status(409);
        send("POST", &child.path("pause"), None).with_status(409);
        send("GET", &child.path("agent/files?path=/count"), None).with_status(409);
        resume(child);
        send("POST", &child.path("resume"), None).with_status(409);
        goes_on(child, "/count");
        goes_on(child, "/tick");
    }
    assert!(number(child, "/count") > counted);
    assert_eq!(child.sh(who), identity);
    assert_eq!(child.value("int(kept.sum())"), 499_500);
    assert_eq!(child.value("pid == __import__('os').getpid()"), true);
    assert_eq!(
        child.value("generator.random() == (lambda r: (r.random(), r.random())[1])(random.Random(7))"),
        true
    );
    let drift = |side: &str| side.trim().parse::<i64>().unwrap();
    let (host, guest) = (host_sh("date +%s"), child.sh("date +%s"));
    assert!((drift(&host) - drift(&guest)).abs() < 60, "host {host}, guest {guest}");

    let snapshot = Snapshot::named("e2e-paused-branch");
    forkd(&["snapshot", "--from-sandbox", &child.id, "--tag", &snapshot.tag]).ok();
    let info = get(&format!("{}/info", snapshot.path())).json();
    // What it was forked from, what it had changed when it was paused, what it has changed since.
    assert_eq!((info["chain_depth"].as_u64(), info["parent_tag"].as_str()), (Some(3), Some(numpy())));
    let forked = Children::fork(&snapshot.tag, 1);
    assert_ne!(forked[0].sh("hostname"), child.id);
    pause(&forked[0]);
    resume(&forked[0]);
    assert_eq!(forked[0].value("int(kept.sum())"), 499_500);
}

#[test]
fn a_paused_sandbox_outlives_its_controller_and_one_that_is_killed_leaves_nothing() {
    let _world = alone();
    let tag = numpy();
    full_pool();
    let files = || host_sh(&format!("cd {}; {LIST} run staging snapshots layers", store_root()));
    let before = files();
    let children = Children::fork(tag, 2);
    let (kept, killed) = (&children[0], &children[1]);
    for child in children.iter() {
        child.sh("echo here >/mark; sync");
        child.eval("kept = 42");
        pause(child);
    }
    crash(&[]);
    assert_eq!(kept.seen().unwrap().state, "paused");
    send("DELETE", &killed.path(""), None).with_status(204);
    assert!(killed.seen().is_none());
    resume(kept);
    crash(&[]);
    assert_eq!(kept.seen().unwrap().state, "running");
    assert_eq!((kept.sh("cat /mark"), kept.value("kept")), ("here".to_owned(), json!(42)));
    assert_eq!(kept.sh("hostname"), kept.id);
    pause(kept);
    drop(children);
    full_pool();
    assert_eq!(files(), before);
}

#[test]
fn a_snapshot_is_made_again_in_its_place() {
    let _world = together();
    let snapshot = Snapshot::make("e2e-refresh", &["--warm", "import numpy; made = 6 * 7"]);
    let id = |tag: &str| get(&format!("/v1/snapshots/{tag}/info")).json()["id"].clone();
    let (old, child) = (id(&snapshot.tag), Children::fork(&snapshot.tag, 1));
    forkd(&["snapshot", "refresh", &snapshot.tag]).ok();
    assert_ne!(id(&snapshot.tag), old);
    assert_eq!(Children::fork(&snapshot.tag, 1)[0].value("made"), 42);
    assert_eq!(child[0].value("made"), 42);
    let branch = Snapshot::named("e2e-refresh-branch");
    forkd(&["branch", &child[0].id, "--tag", &branch.tag]).ok();
    let refused = forkd(&["snapshot", "refresh", &branch.tag]).ends_with(4);
    assert!(refused.stderr.contains("forkd branch"), "{}", refused.stderr);
}
