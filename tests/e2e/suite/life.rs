//! From a snapshot to a sandbox that is gone.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_protocol::rest::{KernelInfo, SandboxInfo, SnapshotInfo};
use serde_json::{Value, json};

use crate::support::{
    BARE, Child, Children, IMAGE, LIST, MONITORS, NUMPY, Snapshot, alone, bare, delete, eventually, forkd,
    get, host_sh, numpy, post, raw, store_root, together,
};

fn snapshot_of(tag: &str) -> Option<SnapshotInfo> {
    get("/v1/snapshots").parsed::<Vec<SnapshotInfo>>().into_iter().find(|s| s.tag == tag)
}

fn sandboxes_of(tag: &str) -> Vec<SandboxInfo> {
    let all: Vec<SandboxInfo> = get("/v1/sandboxes").parsed();
    all.into_iter().filter(|s| s.snapshot_tag == tag).collect()
}

#[test]
fn one_child_comes_in_an_array_too() {
    let _world = together();
    let answer = post("/v1/sandboxes", json!({ "snapshot_tag": bare() })).with_status(201);
    let children = Children::of(answer.parsed());
    assert_eq!(children.len(), 1);
    assert_eq!(children[0].info.state, "running");
    assert_eq!(children[0].seen(), Some(children[0].info.clone()));
}

#[test]
fn forking_none_or_too_many_is_refused() {
    let _world = together();
    for n in [json!(0), json!(1001), json!(-1), json!("two")] {
        post("/v1/sandboxes", json!({ "snapshot_tag": bare(), "n": n })).with_status(400);
    }
}

#[test]
fn what_does_not_exist_is_not_found() {
    let _world = together();
    post("/v1/sandboxes", json!({ "snapshot_tag": "e2e-no-such-tag" })).with_status(404);
    post("/v1/snapshots", json!({ "tag": "e2e-none", "image": "no-such-image" })).with_status(404);
    assert_eq!(snapshot_of("e2e-none"), None);
    delete("/v1/snapshots/e2e-no-such-tag").with_status(404);
    delete("/v1/sandboxes/sb-0-0").with_status(404);
    forkd(&["fork", "--tag", "e2e-no-such-tag"]).ends_with(3);
    forkd(&["ping", "sb-0-0"]).ends_with(3);
}

#[test]
fn bad_names_are_refused_and_touch_nothing() {
    let _world = alone();
    // A monitor may start to wait meanwhile.
    let others = "-not -name 'forkd.db*' -not -path '*/run' -not -path '*/run/wm-*' -not -path '*/audit*'";
    let files = || host_sh(&format!("find {} {others} -printf '%p %s %T@\\n' | sort", store_root()));
    let (before, long) = (files(), "x".repeat(300));
    for bad in ["", "..", ".", "a/../b", "%2e%2e", "/etc", "a\0b", "-rf", "a b", "ünï", "a.b", &long] {
        post("/v1/snapshots", json!({ "tag": bad, "image": IMAGE })).with_status(400);
        post("/v1/sandboxes", json!({ "snapshot_tag": bad })).with_status(400);
    }
    for bad in ["..", "%2e%2e", "a%2f..%2fb", "a/../b", "%00", "-rf", "%c3%bc", "%ff", &long] {
        for path in ["snapshots", "sandboxes"] {
            let request =
                format!("DELETE /v1/{path}/{bad} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            raw(request).with_status(400);
        }
    }
    assert_eq!(files(), before);
}

#[test]
fn of_two_requests_for_one_tag_one_wins() {
    let _world = together();
    let snapshot = Snapshot::named("e2e-race");
    let kernels: Vec<KernelInfo> = get("/v1/kernels").parsed();
    // In the words of published clients.
    let asked = json!({
        "tag": snapshot.tag, "kernel": kernels[0].name, "rootfs": IMAGE, "rw": false, "boot_wait_secs": 10
    });
    let request = || post("/v1/snapshots", asked.clone());
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(request);
        (request(), other.join().unwrap())
    });
    assert_eq!(BTreeSet::from([one.status, other.status]), BTreeSet::from([201, 409]), "{one:?} {other:?}");
    let won = if one.status == 201 { one } else { other };
    assert_eq!(Some(won.parsed()), snapshot_of(&snapshot.tag));
    request().with_status(409);
    let children = Children::fork(&snapshot.tag, 1);
    assert_eq!(children[0].sh("echo fine"), "fine");
    delete(&snapshot.path()).with_status(204);
    delete(&snapshot.path()).with_status(404);
}

#[test]
fn a_snapshot_says_what_it_is() {
    let _world = together();
    let info = snapshot_of(numpy()).unwrap();
    assert_eq!((info.status.as_str(), info.bootable), ("ready", true));
    assert_eq!((info.image.as_str(), info.vcpus, info.memory_mib), (IMAGE, 1, 512));
    assert!((1 << 20..512 << 20).contains(&info.memory_physical_bytes), "{info:?}");
    assert!(info.memory_hash.len() == 64 && info.memory_hash.bytes().all(|b| b.is_ascii_hexdigit()));
    assert!(info.timing.boot_ms > 0 && info.timing.warm_ms > 0 && info.timing.write_ms > 0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    assert!((now - 24 * 3600..=now + 5).contains(&info.created_at_unix), "{info:?}");
    let table = forkd(&["images"]).ok().text();
    assert!(table.lines().any(|l| l.contains(NUMPY) && l.contains(IMAGE) && l.contains("ready")), "{table}");
}

#[test]
fn a_warm_up_that_fails_shows_its_traceback_and_leaves_nothing() {
    let _world = alone();
    let files = || host_sh(&format!("cd {}; {LIST} run staging snapshots layers", store_root()));
    let before = files();
    let code = "def deep():\n    raise ValueError('no luck today')\ndeep()\n";
    let ran = forkd(&["snapshot", "--image", IMAGE, "--tag", "e2e-broken", "--warm", code]).ends_with(2);
    for word in ["Traceback", "in deep", "ValueError: no luck today"] {
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    assert_eq!(snapshot_of("e2e-broken"), None);
    assert_eq!(files(), before);
}

#[test]
fn children_outlive_their_snapshot() {
    let _world = together();
    let snapshot = Snapshot::make("e2e-gone", &["--warm", "kept = list(range(1000000))"]);
    let children = Children::fork(&snapshot.tag, 1);
    forkd(&["rmi", &snapshot.tag]).ok();
    assert_eq!(snapshot_of(&snapshot.tag), None);
    post("/v1/sandboxes", json!({ "snapshot_tag": snapshot.tag })).with_status(404);
    // Memory and files that nobody has touched since the fork.
    assert_eq!(children[0].value("sum(kept)"), 499_999_500_000_u64);
    assert_eq!(children[0].sh("cat /usr/lib/python3/dist-packages/numpy/*.py | grep -c ''; dmesg | grep -c 'I/O error' || true")
        .lines().last(), Some("0"));
}

#[test]
fn ls_shows_what_runs_and_what_has_ended() {
    let _world = together();
    let children = Children::fork(bare(), 2);
    let listed = |child: &Child| child.seen().unwrap();
    assert!(children.iter().all(|c| listed(c).state == "running" && listed(c).snapshot_tag == BARE));
    host_sh(&format!("kill -KILL {}", children[0].info.pid.unwrap()));
    let ended = eventually("the end is listed", || Some(listed(&children[0])).filter(|s| s.state == "ended"));
    assert!(ended.ended.is_some_and(|why| !why.is_empty()));
    assert_eq!(listed(&children[1]).state, "running");
    let table = forkd(&["ls"]).ok().text();
    let line = |child: &Child| table.lines().find(|l| l.contains(&child.id)).unwrap().to_owned();
    assert!(line(&children[0]).contains("ended: ") && line(&children[1]).contains("running"), "{table}");
    post(&children[0].path("exec"), json!({ "args": ["true"] })).with_status(409);
    forkd(&["kill", &children[0].id]).ok();
    assert_eq!(children[0].seen(), None);
}

#[test]
fn killing_twice_is_fine() {
    let _world = together();
    let children = Children::fork(bare(), 2);
    for _ in 0..2 {
        let answer = delete(&children[0].path("")).with_status(204);
        assert_eq!(answer.body, "");
    }
    forkd(&["kill", &children[0].id, &children[1].id]).ok();
    assert!(children.iter().all(|child| child.seen().is_none()));
    post(&children[1].path("ping"), Value::Null).with_status(404);
}

#[test]
fn killing_all_leaves_none() {
    let _world = alone();
    let children = Children::fork(bare(), 3);
    let killed: Vec<String> = forkd(&["--json", "kill", "--all"]).ok().parsed();
    assert!(children.iter().all(|child| killed.contains(&child.id)));
    assert_eq!(get("/v1/sandboxes").json(), json!([]));
    assert_eq!(host_sh(MONITORS), "0");
    assert_eq!(host_sh(&format!("{LIST} {}/run", store_root())), "");
}

#[test]
fn logs_show_the_console() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    children[0].sh("echo a word on the console >/dev/console");
    eventually("the console has it", || {
        forkd(&["logs", &children[0].id]).ok().text().contains("a word on the console").then_some(())
    });
}

#[test]
fn run_needs_nothing_but_an_image() {
    let _world = together();
    let kept = || -> Vec<String> {
        let all: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
        all.into_iter().map(|s| s.tag).filter(|tag| tag.starts_with(&format!("img-{IMAGE}-"))).collect()
    };
    // What an earlier run left goes first.
    kept().iter().for_each(|tag| drop(Snapshot::named(tag)));
    let script = "echo out; echo err >&2; exit 5";
    for _ in 0..2 {
        let ran = forkd(&["run", "--image", IMAGE, "--", "sh", "-c", script]).ends_with(5);
        assert_eq!(ran.text(), "out\n");
        assert!(ran.stderr.ends_with("err\n"), "{}", ran.stderr);
        let tags = kept();
        assert_eq!(tags.len(), 1, "{tags:?}");
        assert_eq!(sandboxes_of(&tags[0]), []);
    }
    kept().iter().for_each(|tag| drop(Snapshot::named(tag)));
}
