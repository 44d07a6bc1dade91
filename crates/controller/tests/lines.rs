//! Sandboxes as forkd's published Python client reaches them: a line of JSON to an address of each.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use forkd_protocol::rest::{AuditLine, SandboxInfo};
use serde_json::Value;

use support::Controller;

fn ready() -> (Controller, SandboxInfo) {
    let controller = Controller::furnished();
    let made = controller.post("/v1/snapshots", r#"{"tag":"t","image":"py","memory_mib":128}"#);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let child = controller.post("/v1/sandboxes", r#"{"snapshot_tag":"t"}"#).json::<Vec<_>>().remove(0);
    (controller, child)
}

fn info(controller: &Controller, id: &str) -> SandboxInfo {
    controller.get(&format!("/v1/sandboxes/{id}")).json()
}

/// As the client does: it closes its side, and reads until the end.
fn ask(address: &str, line: &str) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(line.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut told = String::new();
    stream.read_to_string(&mut told).unwrap();
    serde_json::from_str(&told).unwrap()
}

#[test]
fn a_sandbox_answers_at_its_address_until_it_ends() {
    let (mut controller, child) = ready();
    assert!(child.guest_addr.starts_with("127.0.0.1:"), "{:?}", child.guest_addr);
    assert_eq!(info(&controller, &child.id).guest_addr, child.guest_addr, "it stays");
    let at = child.guest_addr.as_str();
    assert_eq!(ask(at, "{\"action\":\"ping\"}\n")["pong"], true);
    let ran = ask(at, "{\"action\":\"exec\",\"args\":[\"a\",\"b\"],\"timeout\":30}\n");
    assert_eq!((&ran["stdout"], &ran["exit_code"]), (&"a b".into(), &0.into()));
    assert_eq!(ask(at, "{\"action\":\"eval\",\"code\":\"6*7\"}\n")["result"], "6*7");
    assert_eq!(ask(at, "{\"action\":\"reboot\"}\n")["error"], "unknown action: reboot");
    assert_eq!(ask(at, "GET / HTTP/1.1\r\n\r\n")["exit_code"], 1);

    let lines: Vec<AuditLine> = controller.get("/v1/audit").json();
    let execs: Vec<_> = lines.iter().filter(|line| line.what == "POST /v1/sandboxes/{id}/exec").collect();
    assert_eq!(execs.len(), 1, "what is done by it is noted: {lines:?}");
    assert_eq!((execs[0].status, execs[0].to.contains(&child.id)), (200, true));

    controller.restart();
    let again = info(&controller, &child.id).guest_addr;
    assert_eq!(ask(&again, "{\"action\":\"ping\"}\n")["pong"], true, "the next controller has one, too");
    assert_eq!(controller.delete(&format!("/v1/sandboxes/{}", child.id)).status, 204);
    let gone = |address: &str| TcpStream::connect(address).is_err();
    let began = std::time::Instant::now();
    while !gone(&again) {
        assert!(began.elapsed().as_secs() < 60, "its address is still there");
    }
}

#[test]
fn where_a_token_is_demanded_nobody_gets_past_it() {
    let (controller, child) = ready();
    assert_eq!(ask(&child.guest_addr, "{\"action\":\"ping\"}\n")["pong"], true);
    let made: Value = controller.post("/v1/tokens", r#"{"scope":"run"}"#).json();
    let refused = ask(&child.guest_addr, "{\"action\":\"exec\",\"args\":[\"a\"]}\n");
    assert!(refused["error"].as_str().unwrap().contains("token"), "{refused}");
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let path = format!("/v1/sandboxes/{}", child.id);
    let seen: SandboxInfo = controller.send("GET", &path, &[("authorization", &bearer)], b"").json();
    assert_eq!(seen.guest_addr, "", "no address is told that is of no use");
}
