//! What happens is told, kept, and shown to whom it concerns.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use forkd_protocol::rest::{EventInfo, SandboxInfo};

use support::Controller;

fn kinds(controller: &Controller, query: &str) -> Vec<String> {
    let answer = controller.get(&format!("/v1/events?{query}"));
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json::<Vec<EventInfo>>().iter().map(|e| format!("{} {}", e.kind.name(), e.subject)).collect()
}

fn fork(controller: &Controller) -> SandboxInfo {
    let answer = controller.post("/v1/sandboxes", r#"{"snapshot_tag":"t"}"#);
    assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    answer.json::<Vec<SandboxInfo>>().remove(0)
}

#[test]
fn a_life_is_told_in_its_order() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"t","image":"py"}"#).status, 201);
    let id = fork(&controller).id;
    for verb in ["pause", "resume"] {
        assert_eq!(controller.post(&format!("/v1/sandboxes/{id}/{verb}"), "").status, 200);
    }
    assert_eq!(controller.delete(&format!("/v1/sandboxes/{id}")).status, 204);
    assert_eq!(controller.delete("/v1/snapshots/t").status, 204);
    let of_it = |kind: &str| format!("sandbox.{kind} {id}");
    let all = [
        "image.made py".to_owned(),
        "kernel.made k".to_owned(),
        "snapshot.made t".to_owned(),
        of_it("forked"),
        of_it("paused"),
        of_it("resumed"),
        of_it("killed"),
        "snapshot.removed t".to_owned(),
    ];
    assert_eq!(kinds(&controller, ""), all);
    assert_eq!(kinds(&controller, "limit=2"), all[6..], "the newest");
    assert_eq!(kinds(&controller, "after=2&limit=2"), all[2..4], "what follows");
    assert_eq!(kinds(&controller, "kind=sandbox"), all[3..7]);
    assert_eq!(kinds(&controller, "kind=sandbox.paused"), all[4..5]);
    assert_eq!(kinds(&controller, "tag=t"), all[2..]);
    assert_eq!(kinds(&controller, "subject=py"), all[..1]);
    for bad in ["limit=0", "limit=1001", "after=x"] {
        controller.get(&format!("/v1/events?{bad}")).refused(400);
    }
}

#[test]
fn who_follows_sees_what_happens_and_goes_on_after_what_it_saw() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"t","image":"py"}"#).status, 201);
    let mut follower = follow(&controller, "");
    let sandbox = fork(&controller);
    let forked = next(&mut follower);
    assert_eq!((forked.kind.name(), &forked.subject), ("sandbox.forked", &sandbox.id));
    // One that dies by itself says why.
    let pid = sandbox.pid.unwrap().to_string();
    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let ended = next(&mut follower);
    assert_eq!((ended.kind.name(), &ended.subject), ("sandbox.ended", &sandbox.id));
    assert!(ended.detail.as_deref().is_some_and(|why| why.contains("signal 9")), "{ended:?}");
    let mut again = follow(&controller, &format!("Last-Event-ID: {}\r\n", forked.seq));
    assert_eq!(next(&mut again), ended);
    assert_eq!(controller.delete(&format!("/v1/sandboxes/{}", sandbox.id)).status, 204);
    assert_eq!(next(&mut again).kind.name(), "sandbox.removed");
}

#[test]
fn a_tenant_sees_what_is_its_own() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"t","image":"py"}"#).status, 201);
    let asked = r#"{"scope":"run","tenant":"team","tags":["t"]}"#;
    let admin: serde_json::Value = controller.post("/v1/tokens", r#"{"scope":"admin"}"#).json();
    let bearer = |token: &serde_json::Value| format!("Bearer {}", token["token"].as_str().unwrap());
    let admin = bearer(&admin);
    let json = ("Content-Type", "application/json");
    let send = |token: &str, method: &str, path: &str, body: &str| {
        controller.send(method, path, &[("Authorization", token), json], body.as_bytes())
    };
    let its = bearer(&send(&admin, "POST", "/v1/tokens", asked).json());
    let forked: Vec<SandboxInfo> = send(&its, "POST", "/v1/sandboxes", r#"{"snapshot_tag":"t"}"#).json();
    let seen: Vec<EventInfo> = send(&its, "GET", "/v1/events", "").json();
    assert_eq!(seen.iter().map(|e| e.kind.name()).collect::<Vec<_>>(), ["sandbox.forked"]);
    let all: Vec<EventInfo> = send(&admin, "GET", "/v1/events", "").json();
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!(send(&its, "DELETE", &format!("/v1/sandboxes/{}", forked[0].id), "").status, 204);
}

/// A connection on which events come.
fn follow(controller: &Controller, header: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(controller.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nHost: {}\r\nAccept: text/event-stream\r\n{header}\r\n",
        controller.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    // When its head is there, it has been decided what is new.
    while !line.trim().is_empty() {
        line.clear();
        reader.read_line(&mut line).unwrap();
    }
    reader
}

fn next(follower: &mut BufReader<TcpStream>) -> EventInfo {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(follower.read_line(&mut line).unwrap() > 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            return serde_json::from_str(data).unwrap();
        }
    }
}
