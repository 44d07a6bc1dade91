//! The control plane of E2B's clients and the traffic for sandboxes, over real connections, with monitors that are fakes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Answer, Controller};

const KEY: (&str, &str) = ("X-API-Key", "e2b_0");

/// A controller with the snapshot `base`.
fn ready() -> Controller {
    let controller = Controller::furnished();
    let made = controller.post("/v1/snapshots", r#"{"tag":"base","image":"py","memory_mib":128}"#);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    controller
}

fn ask(controller: &Controller, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    controller.send(method, path, &[KEY, ("Content-Type", "application/json")], body.as_bytes())
}

#[track_caller]
fn fine(answer: Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
    if answer.body.is_empty() { Value::Null } else { answer.json() }
}

/// The message of a refusal, whose status is in its body, too.
#[track_caller]
fn refused(answer: &Answer, status: u16) -> String {
    let body: Value = answer.json();
    assert_eq!((answer.status, &body["code"]), (status, &json!(status)), "{body}");
    body["message"].as_str().unwrap().to_owned()
}

fn create(controller: &Controller, more: Value) -> Value {
    let mut new = json!({ "templateID": "base", "timeout": 600 });
    new.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fine(ask(controller, "POST", "/v2/sandboxes", &new), 201)
}

fn id(sandbox: &Value) -> &str {
    sandbox["sandboxID"].as_str().unwrap()
}

fn token(sandbox: &Value) -> &str {
    sandbox["envdAccessToken"].as_str().unwrap()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_sandbox_has_everything_that_clients_require() {
    let controller = ready();
    let made = create(
        &controller,
        json!({ "metadata": { "a b": "c&d" }, "envVars": { "A": "1" }, "autoPause": true }),
    );
    assert_eq!((made["templateID"].as_str(), made["clientID"].as_str()), (Some("base"), Some("forkd")));
    assert_eq!((token(&made).len(), &made["envdVersion"]), (64, &json!("0.6.13")));
    let path = format!("/sandboxes/{}", id(&made));
    let detail = fine(ask(&controller, "GET", &path, &Value::Null), 200);
    for field in ["startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "state", "envdVersion"] {
        assert!(!detail[field].is_null(), "{field}: {detail}");
    }
    assert_eq!((&detail["memoryMB"], &detail["state"]), (&json!(128), &json!("running")));
    assert_eq!(detail["lifecycle"], json!({ "autoResume": false, "onTimeout": "pause" }));
    assert_eq!((token(&detail), &detail["metadata"]), (token(&made), &json!({ "a b": "c&d" })));
    assert_eq!(fine(ask(&controller, "DELETE", &path, &Value::Null), 204), Value::Null);
    for (method, path) in [("DELETE", path.clone()), ("GET", path.clone()), ("POST", format!("{path}/pause"))]
    {
        assert!(refused(&ask(&controller, method, &path, &Value::Null), 404).contains(id(&made)));
    }
}

#[test]
fn what_cannot_be_had_is_refused_in_their_shape() {
    let controller = ready();
    assert!(refused(&controller.post("/v2/sandboxes", "{}"), 401).contains("E2B_API_KEY"));
    let new = |body: Value| ask(&controller, "POST", "/v2/sandboxes", &body);
    assert!(refused(&new(json!({ "templateID": "nope" })), 404).contains("nope"));
    assert!(refused(&new(json!({ "templateID": "../x" })), 404).contains("template"));
    for (name, value) in
        [("mcp", json!({ "x": {} })), ("volumeMounts", json!([{ "name": "v", "path": "/v" }]))]
    {
        assert!(refused(&new(json!({ "templateID": "base", name: value })), 400).contains(name));
    }
    let network = json!({ "templateID": "base", "network": { "denyOut": ["203.0.113.1"] } });
    assert!(refused(&new(network), 400).contains("network.denyOut"));
    refused(&new(json!({ "templateID": "base", "timeout": 1_000_000_000 })), 400);
    refused(&ask(&controller, "POST", "/v2/sandboxes", &json!("text")), 400);
    refused(&ask(&controller, "GET", "/v2/sandboxes?state=dead", &Value::Null), 400);
    assert!(fine(ask(&controller, "GET", "/v2/sandboxes", &Value::Null), 200).as_array().unwrap().is_empty());
}

#[test]
fn lists_are_filtered_and_come_in_pages() {
    let controller = ready();
    let made: Vec<Value> =
        ["x", "y", "x"].iter().map(|v| create(&controller, json!({ "metadata": { "k": v } }))).collect();
    fine(ask(&controller, "POST", &format!("/sandboxes/{}/pause", id(&made[0])), &json!({})), 204);
    let list = |query: &str| {
        let answer = ask(&controller, "GET", &format!("/v2/sandboxes?{query}"), &Value::Null);
        let next = answer.head.lines().find_map(|l| l.strip_prefix("x-next-token: ").map(str::to_owned));
        let all: Vec<String> =
            fine(answer, 200).as_array().unwrap().iter().map(|s| id(s).to_owned()).collect();
        (all, next)
    };
    assert_eq!(list("metadata=k%3Dx").0.len(), 2);
    assert_eq!(list("metadata=k%3Dx&state=running").0, [id(&made[2])]);
    assert_eq!(list("state=running%2Cpaused&order=asc").0.len(), 3);
    assert_eq!(list("state=paused").0, [id(&made[0])]);
    let (first, next) = list("limit=2");
    let (rest, end) = list(&format!("limit=2&nextToken={}", next.unwrap()));
    assert_eq!((first.len(), rest.len(), end), (2, 1, None));
    // The first version lists what runs.
    assert_eq!(fine(ask(&controller, "GET", "/sandboxes", &Value::Null), 200).as_array().unwrap().len(), 2);
}

#[test]
fn time_is_extended_by_connecting_set_by_setting_and_in_the_end_over() {
    let controller = ready();
    let killed = create(&controller, json!({ "timeout": 100 }));
    let path = |sandbox: &Value, verb: &str| format!("/sandboxes/{}{verb}", id(sandbox));
    let ends = || fine(ask(&controller, "GET", &path(&killed, ""), &Value::Null), 200)["endAt"].to_string();
    let first = ends();
    let again = fine(ask(&controller, "POST", &path(&killed, "/connect"), &json!({ "timeout": 10 })), 200);
    assert_eq!((token(&again), ends()), (token(&killed), first.clone()));
    fine(
        ask(&controller, "POST", &format!("/v2{}", path(&killed, "/connect")), &json!({ "timeout": 1000 })),
        200,
    );
    assert!(ends() > first);
    fine(ask(&controller, "POST", &path(&killed, "/timeout"), &json!({ "timeout": 0 })), 204);
    until("it is killed", || ask(&controller, "GET", &path(&killed, ""), &Value::Null).status == 404);
    let paused = create(&controller, json!({ "timeout": 1, "autoPause": true }));
    let state = || fine(ask(&controller, "GET", &path(&paused, ""), &Value::Null), 200)["state"].clone();
    until("it is paused", || state() == "paused");
    assert!(refused(&ask(&controller, "POST", &path(&paused, "/pause"), &json!({})), 409).contains("paus"));
    fine(ask(&controller, "POST", &path(&paused, "/connect"), &json!({ "timeout": 500 })), 201);
    assert_eq!(state(), "running");
    refused(&ask(&controller, "POST", &path(&paused, "/resume"), &json!({})), 409);
}

#[test]
fn forks_have_tokens_of_their_own_and_leave_no_snapshot() {
    let controller = ready();
    let source = create(&controller, json!({ "metadata": { "k": "v" } }));
    let forked = fine(
        ask(&controller, "POST", &format!("/sandboxes/{}/fork", id(&source)), &json!({ "count": 2 })),
        201,
    );
    let children: Vec<&Value> = forked.as_array().unwrap().iter().map(|one| &one["sandbox"]).collect();
    assert_eq!(children.len(), 2);
    for child in &children {
        assert_ne!(token(child), token(&source));
        let detail = fine(ask(&controller, "GET", &format!("/sandboxes/{}", id(child)), &Value::Null), 200);
        assert_eq!((&detail["metadata"], &detail["templateID"]), (&json!({ "k": "v" }), &json!("base")));
    }
    assert_ne!(token(children[0]), token(children[1]));
    assert!(fine(ask(&controller, "GET", "/snapshots", &Value::Null), 200).as_array().unwrap().is_empty());
    refused(
        &ask(&controller, "POST", &format!("/sandboxes/{}/fork", id(&source)), &json!({ "count": 21 })),
        400,
    );
}

#[test]
fn snapshots_are_templates() {
    let controller = ready();
    let source = create(&controller, json!({}));
    let path = format!("/sandboxes/{}/snapshots", id(&source));
    let made = fine(ask(&controller, "POST", &path, &json!({ "name": "snap" })), 201);
    assert_eq!(made, json!({ "snapshotID": "snap", "names": ["snap"] }));
    let query = format!("/snapshots?sandboxID={}", id(&source));
    assert_eq!(fine(ask(&controller, "GET", &query, &Value::Null), 200), json!([made]));
    assert_eq!(
        fine(ask(&controller, "GET", "/templates/aliases/snap", &Value::Null), 200)["templateID"],
        "snap"
    );
    assert_eq!(create(&controller, json!({ "templateID": "snap" }))["templateID"], "snap");
    fine(ask(&controller, "DELETE", "/templates/snap", &Value::Null), 204);
    for path in ["/templates/snap", "/templates/ns%2Fsnap"] {
        refused(&ask(&controller, "DELETE", path, &Value::Null), 404);
    }
    refused(&ask(&controller, "GET", "/templates/aliases/snap", &Value::Null), 404);
}

/// Sends to a port of a sandbox by headers.
fn traffic(
    controller: &Controller,
    method: &str,
    path: &str,
    sandbox: &str,
    port: u16,
    token: &str,
) -> Answer {
    let port = port.to_string();
    let mut headers = vec![("E2b-Sandbox-Id", sandbox), ("E2b-Sandbox-Port", port.as_str())];
    if !token.is_empty() {
        headers.push(("X-Access-Token", token));
    }
    controller.send(method, path, &headers, b"body")
}

#[test]
fn the_agent_is_reached_with_the_token_of_its_sandbox_alone() {
    let controller = ready();
    let (one, other) = (create(&controller, json!({})), create(&controller, json!({})));
    let echo = |token: &str| traffic(&controller, "POST", "/echo", id(&one), 49983, token);
    let answer = echo(token(&one));
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"body"[..]));
    assert!(!answer.head.contains("x-access-token"), "the guest sees no token: {}", answer.head);
    for wrong in ["", token(&other), "x"] {
        refused(&echo(wrong), 401);
    }
    assert_eq!(traffic(&controller, "GET", "/health", id(&one), 49983, "").status, 200);
    assert!(
        refused(&traffic(&controller, "POST", "/forkd/v1/thaw", id(&one), 49983, token(&one)), 404)
            .contains("verbs")
    );
    // One that asks for none, as clients of the first version do.
    let open = fine(ask(&controller, "POST", "/sandboxes", &json!({ "templateID": "base" })), 201);
    assert!(open["envdAccessToken"].is_null());
    assert_eq!(traffic(&controller, "POST", "/echo", &format!("{}-forkd", id(&open)), 49983, "").status, 200);
    // Whoever makes one by our API is reached there.
    let own: Value = controller.post("/v1/sandboxes", r#"{"snapshot_tag":"base"}"#).json();
    refused(&traffic(&controller, "POST", "/echo", own[0]["id"].as_str().unwrap(), 49983, ""), 401);
    let gone = traffic(&controller, "GET", "/health", "sb-0-0", 49983, "");
    assert!(refused(&gone, 502).contains("was not found"));
}

#[test]
fn traffic_continues_a_paused_sandbox_where_that_was_asked_for() {
    let controller = ready();
    for auto in [true, false] {
        let sandbox = create(&controller, json!({ "autoResume": { "enabled": auto } }));
        fine(ask(&controller, "POST", &format!("/sandboxes/{}/pause", id(&sandbox)), &json!({})), 204);
        let answer = traffic(&controller, "POST", "/echo", id(&sandbox), 49983, token(&sandbox));
        if auto {
            assert_eq!(answer.status, 200);
        } else {
            assert!(refused(&answer, 502).contains("was not found"));
        }
    }
}

/// A server that answers one request with what it saw of it, then closes.
fn server() -> (u16, std::thread::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        if head.to_ascii_lowercase().contains("upgrade: websocket") {
            let answer =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(answer.as_bytes()).unwrap();
            let mut said = [0; 4];
            reader.read_exact(&mut said).unwrap();
            said.reverse();
            stream.write_all(&said).unwrap();
        } else {
            stream
                .write_all(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\nX-Mine: 1\r\n\r\nhi",
                )
                .unwrap();
        }
        head
    });
    (port, serving)
}

#[test]
fn servers_in_a_sandbox_are_reached_by_path_by_headers_and_by_name() {
    let controller = ready();
    let sandbox = create(&controller, json!({}));
    let (port, serving) = server();
    let path = format!("/v1/sandboxes/{}/ports/{port}/a%20b?c=d", id(&sandbox));
    let answer = controller.send("GET", &path, &[("Authorization", "Bearer secret"), ("X-Other", "1")], b"");
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"hi"[..]));
    assert!(answer.head.contains("x-mine: 1"), "{}", answer.head);
    let head = serving.join().unwrap().to_ascii_lowercase();
    assert!(head.starts_with("get /a%20b?c=d http/1.1\r\n") && head.contains("x-other: 1"), "{head}");
    assert!(
        head.contains(&format!("host: localhost:{port}")) && head.contains("x-forwarded-prefix"),
        "{head}"
    );
    assert!(!head.contains("secret"), "{head}");
    let (port, serving) = server();
    assert_eq!(traffic(&controller, "GET", "/x", id(&sandbox), port, "").body, b"hi");
    assert!(serving.join().unwrap().starts_with("GET /x "));
    let (port, serving) = server();
    let mut stream = TcpStream::connect(controller.address).unwrap();
    let host = format!("{port}-{}.sandboxes.example", id(&sandbox));
    write!(stream, "GET /y HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("hi"), "{answer}");
    assert!(serving.join().unwrap().to_ascii_lowercase().contains(&format!("host: {host}")));
    // Nobody listens there any more.
    let closed = controller.get(&format!("/v1/sandboxes/{}/ports/{port}/", id(&sandbox)));
    assert_eq!(closed.refused(502).code, "port_not_open");
    assert!(
        refused(&traffic(&controller, "GET", "/", id(&sandbox), port, ""), 502).contains("port is not open")
    );
    assert_eq!(
        controller.get(&format!("/v1/sandboxes/{}/ports/0/", id(&sandbox))).refused(400).code,
        "bad_request"
    );
}

#[test]
fn a_private_sandbox_keeps_its_ports_to_whoever_has_its_token() {
    let controller = ready();
    let sandbox = create(&controller, json!({ "network": { "allowPublicTraffic": false } }));
    let (port, serving) = server();
    refused(&traffic(&controller, "GET", "/", id(&sandbox), port, token(&sandbox)), 403);
    let number = port.to_string();
    let headers = [
        ("E2b-Sandbox-Id", id(&sandbox)),
        ("E2b-Sandbox-Port", number.as_str()),
        ("E2B-Traffic-Access-Token", sandbox["trafficAccessToken"].as_str().unwrap()),
    ];
    assert_eq!(controller.send("GET", "/", &headers, b"").body, b"hi");
    assert!(!serving.join().unwrap().to_ascii_lowercase().contains("traffic-access"));
}

/// Asks for another protocol; the connection after its head.
fn upgrade(controller: &Controller, method: &str, path: &str, protocol: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(controller.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"
    )
    .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    (String::from_utf8(head).unwrap().to_ascii_lowercase(), stream)
}

#[test]
fn websockets_and_plain_connections_go_through() {
    let controller = ready();
    let sandbox = create(&controller, json!({}));
    let (port, serving) = server();
    let path = format!("/v1/sandboxes/{}/ports/{port}/ws", id(&sandbox));
    let (head, mut stream) = upgrade(&controller, "GET", &path, "websocket");
    assert!(head.starts_with("http/1.1 101 ") && head.contains("upgrade: websocket"), "{head}");
    stream.write_all(b"abcd").unwrap();
    let mut said = [0; 4];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"dcba");
    serving.join().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let path = format!("/v1/sandboxes/{}/tunnel/{port}", id(&sandbox));
    let (head, mut stream) = upgrade(&controller, "POST", &path, "forkd-tunnel");
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    let (mut there, _) = listener.accept().unwrap();
    stream.write_all(b"to").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut got = String::new();
    there.read_to_string(&mut got).unwrap();
    there.write_all(b"fro").unwrap();
    drop(there);
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    assert_eq!((got.as_str(), back.as_str()), ("to", "fro"));
    assert_eq!(controller.post(&path, "").refused(426).code, "upgrade_required");
}
