//! What published clients send, and what they read in the answers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{Children, IMAGE, bare, delete, forkd, get, numpy, post, raw, send, together};

fn keys(object: &Value) -> BTreeSet<&str> {
    object.as_object().unwrap_or_else(|| panic!("no object: {object}")).keys().map(String::as_str).collect()
}

fn has(object: &Value, wanted: &[&str]) {
    let keys = keys(object);
    assert!(wanted.iter().all(|key| keys.contains(key)), "{wanted:?} in {object}");
}

#[test]
fn the_controller_says_who_it_is() {
    let _world = together();
    assert_eq!(get("/healthz").json(), json!({ "ok": true }));
    let version = get("/version").json();
    assert_eq!(version["api"], "v1");
    assert_eq!(
        forkd(&["--version"]).ok().text().trim(),
        format!("forkd {}", version["version"].as_str().unwrap())
    );
    let metrics = get("/metrics").body;
    for name in ["forkd_snapshots_total ", "forkd_sandboxes_active ", "forkd_build_info{version="] {
        assert!(metrics.lines().any(|line| line.starts_with(name)), "{name} in {metrics}");
    }
    assert!(get("/openapi.json").json()["paths"]["/v1/sandboxes"].is_object());
}

#[test]
fn every_kind_of_client_can_fork() {
    let _world = together();
    let tag = bare();
    for request in [
        json!({ "snapshot_tag": tag, "n": 1, "per_child_netns": false }),
        json!({ "snapshot_tag": tag, "n": 1, "per_child_netns": true, "prewarm": true, "live_fork": true, "hugepages": true }),
        json!({ "snapshot_tag": tag, "n": 1, "per_child_netns": false, "memory_limit_mib": 256, "prewarm": false }),
    ] {
        let answer = post("/v1/sandboxes", request).with_status(201);
        let children = Children::of(answer.parsed());
        let info = &answer.json()[0];
        has(
            info,
            &["id", "snapshot_tag", "netns", "guest_addr", "created_at_unix", "pid", "memory_limit_mib"],
        );
        has(info, &["has_branched", "last_branch_memory_path", "branch_count"]);
        assert_eq!(info["snapshot_tag"], tag);
        assert_eq!(&get(&children[0].path("")).json(), info);
        assert_eq!(children[0].sh("echo fine"), "fine");
    }
}

#[test]
fn snapshots_and_answers_have_the_fields_that_clients_read() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let child = &children[0];
    for snapshot in get("/v1/snapshots").json().as_array().unwrap() {
        has(snapshot, &["tag", "dir", "created_at_unix", "status", "bootable"]);
    }
    // Neither a body nor its type, as they send it.
    let ping = send("POST", &child.path("ping"), None).with_status(200).json();
    has(&ping, &["pong", "numpy_version", "pid", "agent_lang", "warmup_ready"]);
    assert_eq!((&ping["pong"], &ping["pid"]), (&json!(true), &json!(1)));
    let eval = post(&child.path("eval"), json!({ "code": "1 + 1" })).with_status(200).json();
    assert_eq!((&eval["result"], &eval["error"], &eval["exit_code"]), (&json!("2"), &Value::Null, &json!(0)));
    let failed = post(&child.path("eval"), json!({ "code": "1 / 0" })).with_status(200).json();
    assert_eq!((&failed["result"], &failed["exit_code"]), (&Value::Null, &json!(1)));
    assert_eq!(failed["error"], "ZeroDivisionError: division by zero");
}

#[test]
fn refusals_are_json_that_says_why() {
    let _world = together();
    let json_post = |body: &str| {
        let head = "POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
        raw(format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
    };
    let refusals = [
        (json_post("{"), 400),
        (json_post("[]"), 400),
        (post("/v1/sandboxes", json!({ "n": 1 })), 400),
        (send("GET", "/v1/sandboxes/sb-0-0", None), 404),
        (send("GET", "/v1/no-such-route", None), 404),
        (send("PUT", "/v1/sandboxes", None), 405),
        (delete("/v1/sandboxes/sb-0-0"), 404),
    ];
    for (answer, status) in refusals {
        let answer = answer.with_status(status);
        assert!(answer.head.to_ascii_lowercase().contains("content-type: application/json"), "{answer:?}");
        assert!(answer.json()["error"].as_str().is_some_and(|text| !text.is_empty()), "{answer:?}");
    }
}

#[test]
fn the_exit_code_of_the_command_tells_kinds_of_failure_apart() {
    let _world = together();
    forkd(&["fork", "--tag", "..", "-n", "1"]).ends_with(2);
    forkd(&["fork", "--tag", bare(), "-n", "0"]).ends_with(2);
    forkd(&["snapshot", "--image", IMAGE, "--tag", bare()]).ends_with(4);
    forkd(&["rmi", "e2e-no-such-tag"]).ends_with(3);
    forkd(&["exec", "sb-0-0", "--", "true"]).ends_with(125);
    let refused = forkd(&["--url", "http://127.0.0.1:1", "ls"]).ends_with(9);
    assert!(refused.stderr.contains("forkd serve"), "{}", refused.stderr);
}

#[test]
fn every_list_can_be_had_as_json() {
    let _world = together();
    bare();
    for list in [&["ls"][..], &["images"], &["image", "ls"], &["kernel", "ls"]] {
        let printed: Value = forkd(&[&["--json"], list].concat()).ok().parsed();
        assert!(printed.is_array(), "{list:?}: {printed}");
    }
}
