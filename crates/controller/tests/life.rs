//! Snapshots and sandboxes over a real connection, with monitors that are fakes: what a client sees of them.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use forkd_protocol::guest::GUEST_VERSION;
use forkd_protocol::rest::{
    EvalResponse, ExecResponse, GarbageReport, PingResponse, SandboxInfo, SnapshotInfo, SnapshotInfoDetail,
    VerifyReport,
};

use support::{Answer, Controller};

fn snapshot(controller: &Controller, tag: &str) -> Answer {
    controller.post("/v1/snapshots", &format!(r#"{{"tag":"{tag}","image":"py","memory_mib":128}}"#))
}

/// With the snapshot `t`.
fn ready() -> Controller {
    let controller = Controller::furnished();
    let made = snapshot(&controller, "t");
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    controller
}

fn fork(controller: &Controller, n: u32) -> Vec<SandboxInfo> {
    let made = controller
        .post("/v1/sandboxes", &format!(r#"{{"snapshot_tag":"t","n":{n},"per_child_netns":true}}"#));
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    made.json()
}

fn sandboxes(controller: &Controller) -> Vec<SandboxInfo> {
    controller.get("/v1/sandboxes").json()
}

#[test]
fn a_sandbox_lives_from_fork_to_kill() {
    let controller = ready();
    let children = fork(&controller, 3);
    assert_eq!(children.len(), 3);
    assert!(children.iter().all(|c| c.state == "running" && c.snapshot_tag == "t" && c.pid.is_some()));
    let path = |verb: &str| format!("/v1/sandboxes/{}/{verb}", children[0].id);
    let exec: ExecResponse = controller.post(&path("exec"), r#"{"args":["a","b"],"timeout_secs":5}"#).json();
    assert_eq!((exec.stdout.as_str(), exec.exit_code), ("a b", 0));
    let exec: ExecResponse = controller.post(&path("exec"), r#"{"args":["bytes"]}"#).json();
    assert!(exec.stdout_base64.is_some());
    let eval: EvalResponse = controller.post(&path("eval"), r#"{"code":"6*7"}"#).json();
    assert_eq!((eval.result.as_deref(), eval.exit_code), (Some("6*7"), 0));
    let ping: PingResponse = controller.post(&path("ping"), "").json();
    assert!(ping.pong && ping.warmup_ready);
    assert_eq!(controller.get(&path("logs")).status, 200);
    assert_eq!(controller.get(&path("stats")).status, 200);
    let metrics = String::from_utf8(controller.get("/metrics").body).unwrap();
    assert!(metrics.contains("forkd_snapshots_total 1\n") && metrics.contains("forkd_sandboxes_active 3\n"));

    for child in &children {
        assert_eq!(controller.delete(&format!("/v1/sandboxes/{}", child.id)).status, 204);
        controller.get(&format!("/v1/sandboxes/{}", child.id)).refused(404);
    }
    assert!(sandboxes(&controller).is_empty());
}

#[test]
fn of_many_requests_for_one_tag_exactly_one_wins() {
    let controller = Controller::furnished();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(|| snapshot(&controller, "t").status)).collect();
        asking.into_iter().map(|a| a.join().unwrap()).collect()
    });
    assert_eq!(statuses.iter().filter(|s| **s == 201).count(), 1, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|s| **s == 409).count(), 7, "{statuses:?}");
    let listed: Vec<SnapshotInfo> = controller.get("/v1/snapshots").json();
    assert_eq!(listed.len(), 1);
    assert_eq!(snapshot(&controller, "t").refused(409).code, "tag_taken");
    assert_eq!(controller.delete("/v1/snapshots/t").status, 204);
    assert_eq!(snapshot(&controller, "t").status, 201);
}

#[test]
fn progress_comes_as_events_and_ends_with_the_snapshot() {
    let controller = Controller::furnished();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let body = br#"{"tag":"t","image":"py","memory_mib":128}"#;
    let answer = controller.send("POST", "/v1/snapshots", &headers, body);
    assert!(answer.head.to_lowercase().contains("content-type: text/event-stream"), "{}", answer.head);
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.starts_with("event: progress\ndata: "), "{text}");
    let made = text.split_once("event: done\ndata: ").expect(&text).1;
    let made: SnapshotInfo = serde_json::from_str(made.trim()).unwrap();
    assert_eq!((made.tag.as_str(), made.bootable), ("t", true));
}

#[test]
fn where_one_child_fails_all_do_and_the_caller_learns_why() {
    let controller = ready();
    controller.mood("no-identity");
    let body = controller.post("/v1/sandboxes", r#"{"snapshot_tag":"t","n":3}"#);
    assert!(body.status >= 500, "{}", body.status);
    let refused = body.refused(body.status);
    assert_eq!(refused.failures.len(), 1, "{refused:?}");
    assert!(sandboxes(&controller).is_empty());
    assert_eq!(fork(&controller, 2).len(), 2);
}

#[test]
fn a_guest_that_refuses_stalls_or_dies_is_told_apart() {
    let controller = ready();
    let id = &fork(&controller, 1)[0].id;
    let exec = |verb: &str| {
        let body = format!(r#"{{"args":["{verb}"],"timeout_secs":1}}"#);
        controller.post(&format!("/v1/sandboxes/{id}/exec"), &body)
    };
    assert_eq!(exec("refuse").refused(400).code, "no_such_user");
    exec("stall").refused(502);
    exec("flood").refused(502);
    exec("nonsense").refused(502);
    let dead = exec("stop");
    assert!((409..=502).contains(&dead.status), "{}", dead.status);
    dead.refused(dead.status);
}

#[test]
fn requests_for_the_agent_stream_through_both_ways() {
    let controller = ready();
    let id = &fork(&controller, 1)[0].id;
    let mut stream = TcpStream::connect(controller.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST /v1/sandboxes/{id}/agent/echo?x=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
         X-Agent-Authorization: Basic cm9vdDo=\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // Each piece comes back before the next is sent: nothing waits for the end of a body.
    let mut got = Vec::new();
    let mut buffer = [0; 4096];
    for piece in ["one", "two", "three"] {
        write!(stream, "{:x}\r\n{piece}\r\n", piece.len()).unwrap();
        while !got.windows(piece.len()).any(|w| w == piece.as_bytes()) {
            let n = stream.read(&mut buffer).unwrap();
            assert!(n > 0, "{}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&buffer[..n]);
        }
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    let text = String::from_utf8(got).unwrap().to_lowercase();
    let seen = text.lines().find(|l| l.starts_with("x-seen:")).expect(&text);
    assert!(seen.contains("authorization") && !seen.contains("x-agent-authorization"), "{seen}");

    let kept = controller.post(&format!("/v1/sandboxes/{id}/agent/forkd/v1/freeze"), "{}").refused(404);
    assert_eq!(kept.code, "reserved");
}

#[test]
fn a_snapshot_is_described_flattened_checked_and_cleaned_up_after() {
    let controller = ready();
    let sandbox = fork(&controller, 1).remove(0);
    let listed: Vec<SnapshotInfo> = controller.get("/v1/snapshots").json();
    assert_eq!((sandbox.snapshot_id.as_ref(), listed[0].chain_depth), (Some(&listed[0].id), 1));
    let detail: SnapshotInfoDetail = controller.get("/v1/snapshots/t/info").json();
    assert_eq!((detail.id.as_str(), detail.chain_depth, detail.memory_layers.len()), (&*listed[0].id, 1, 1));
    assert_eq!((detail.memory_logical_bytes, detail.agent_protocol), (128 << 20, GUEST_VERSION));
    assert!(detail.ancestors.is_empty() && detail.dependents.is_empty() && detail.vmstate_bytes > 0);

    let made = controller.post("/v1/snapshots/t/compact", r#"{"to":"flat"}"#);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    assert_eq!(made.json::<SnapshotInfo>().memory_hash, listed[0].memory_hash);
    let taken = controller.post("/v1/snapshots/t/compact", r#"{"to":"flat"}"#).refused(409);
    assert_eq!(taken.code, "tag_taken");

    let report: VerifyReport = controller.post("/v1/verify", "{}").json();
    assert_eq!((report.snapshots, report.damage.len()), (2, 0));
    let layers = controller.folder.path().join("root/layers");
    let layer = layers.join(&listed[0].memory_hash);
    let sound = std::fs::read(&layer).unwrap();
    // Sealed, but not against its owner.
    std::fs::remove_file(&layer).unwrap();
    std::fs::write(&layer, &sound[4096..]).unwrap();
    let report: VerifyReport = controller.post("/v1/verify", r#"{"tag":"t"}"#).json();
    assert_eq!(report.damage.len(), 1);
    assert!(report.damage[0].path.ends_with(&listed[0].memory_hash) && report.damage[0].tags == ["t"]);

    std::fs::write(layers.join("left"), [7; 4096]).unwrap();
    let said: GarbageReport = controller.post("/v1/gc?dry_run=true", "").json();
    assert!(said.dry_run && said.items[0].name == "left" && said.bytes >= 4096);
    let done: GarbageReport = controller.post("/v1/gc", "").json();
    assert_eq!((done.dry_run, done.items, layers.join("left").exists()), (false, said.items, false));
    assert_eq!(controller.delete("/v1/snapshots/t?force=true").status, 204);
}

#[test]
fn a_sandbox_is_paused_resumed_and_removed_from_the_disk() {
    let controller = ready();
    let id = fork(&controller, 1).remove(0).id;
    let path = |verb: &str| format!("/v1/sandboxes/{id}/{verb}");
    assert_eq!(controller.post(&path("resume"), "").refused(409).code, "not_paused");
    let paused: SandboxInfo = controller.post(&path("pause"), "").json();
    assert_eq!((paused.id.as_str(), paused.state.as_str(), paused.pid), (id.as_str(), "paused", None));
    assert_eq!(sandboxes(&controller), [paused]);
    let metrics = String::from_utf8(controller.get("/metrics").body).unwrap();
    assert!(metrics.contains("forkd_sandboxes_active 0\n"), "{metrics}");
    for (verb, body) in [
        ("exec", r#"{"args":["a"]}"#),
        ("eval", r#"{"code":"1"}"#),
        ("branch", "{}"),
        ("ping", ""),
        ("pause", ""),
    ] {
        let refused = controller.post(&path(verb), body).refused(409);
        assert_eq!(refused.code, "not_running", "{verb}");
        assert!(refused.error.contains(&format!("forkd resume {id}")), "{verb}: {refused:?}");
    }
    controller.get(&path("agent/files?path=/x")).refused(409);
    assert_eq!(controller.get(&path("logs")).status, 200);
    let resumed: SandboxInfo = controller.post(&path("resume"), "").json();
    assert_eq!((resumed.state.as_str(), resumed.pid.is_some()), ("running", true));
    let exec: ExecResponse = controller.post(&path("exec"), r#"{"args":["a"]}"#).json();
    assert_eq!(exec.stdout, "a");
    assert_eq!(controller.post(&path("pause"), "").status, 200);
    assert_eq!(controller.delete(&format!("/v1/sandboxes/{id}")).status, 204);
    controller.post(&path("resume"), "").refused(404);
}

#[test]
fn a_snapshot_is_made_again_with_progress_as_events() {
    let controller = ready();
    let before: SnapshotInfoDetail = controller.get("/v1/snapshots/t/info").json();
    let headers = [("Content-Type", "application/json"), ("Accept", "text/event-stream")];
    let answer = controller.send("POST", "/v1/snapshots/t/refresh", &headers, b"{}");
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.starts_with("event: progress\ndata: ") && text.contains("event: done\n"), "{text}");
    let after: SnapshotInfoDetail = controller.get("/v1/snapshots/t/info").json();
    assert_ne!(before.id, after.id);
    let made = controller.post("/v1/snapshots/t/refresh", r#"{"tag":"u"}"#);
    assert_eq!((made.status, made.json::<SnapshotInfo>().tag.as_str()), (201, "u"));
    controller.post("/v1/snapshots/nope/refresh", "{}").refused(404);
}
