//! Who may ask, and what is kept of what was asked.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends at the first surprise"
)]

mod support;

use serde_json::{Value, json};

use support::{Answer, Controller};

fn token(controller: &Controller, admin: Option<&str>, asked: &Value) -> (String, String) {
    let made = with(controller, admin, "POST", "/v1/tokens", Some(asked));
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let made: Value = made.json();
    (made["id"].as_str().unwrap().to_owned(), made["token"].as_str().unwrap().to_owned())
}

fn with(
    controller: &Controller,
    token: Option<&str>,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Answer {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut headers: Vec<_> = bearer.iter().map(|bearer| ("Authorization", bearer.as_str())).collect();
    if body.is_some() {
        headers.push(("Content-Type", "application/json"));
    }
    controller.send(method, path, &headers, &body.map(body_of).unwrap_or_default())
}

fn body_of(body: &Value) -> Vec<u8> {
    body.to_string().into_bytes()
}

#[test]
fn from_the_first_token_on_one_is_demanded() {
    let controller = Controller::start();
    assert_eq!(controller.get("/v1/sandboxes").status, 200);
    let (id, admin) = token(&controller, None, &json!({ "scope": "admin", "note": "first" }));
    let refused = controller.get("/v1/sandboxes");
    assert_eq!(refused.refused(401).code, "unauthorized");
    assert!(refused.head.to_ascii_lowercase().contains("www-authenticate"));
    assert_eq!(controller.get("/healthz").status, 200);
    assert_eq!(with(&controller, Some(&admin), "GET", "/v1/sandboxes", None).status, 200);
    assert_eq!(controller.send("GET", "/v2/sandboxes", &[("X-API-Key", &admin)], b"").status, 200);
    for wrong in ["", "x", "forkd_0_0", &format!("{admin}x"), &admin[..admin.len() - 1]] {
        with(&controller, Some(wrong), "GET", "/v1/sandboxes", None).refused(401);
    }
    // What is shown of it is not the token.
    let listed = with(&controller, Some(&admin), "GET", "/v1/tokens", None);
    let text = String::from_utf8(listed.body).unwrap();
    assert!(text.contains(&id) && !text.contains(&admin), "{text}");
}

#[test]
fn a_token_does_what_its_scope_says_until_it_is_revoked() {
    let controller = Controller::start();
    let (_, admin) = token(&controller, None, &json!({ "scope": "admin" }));
    let fork = json!({ "snapshot_tag": "none", "n": 1 });
    let cases = [("read", 403, 403), ("run", 404, 403), ("operate", 404, 403), ("admin", 404, 200)];
    for (scope, forking, tokens) in cases {
        let (id, its) = token(&controller, Some(&admin), &json!({ "scope": scope }));
        let its = Some(its.as_str());
        assert_eq!(with(&controller, its, "GET", "/v1/sandboxes", None).status, 200, "{scope}");
        assert_eq!(with(&controller, its, "POST", "/v1/sandboxes", Some(&fork)).status, forking, "{scope}");
        assert_eq!(with(&controller, its, "GET", "/v1/tokens", None).status, tokens, "{scope}");
        assert_eq!(with(&controller, Some(&admin), "DELETE", &format!("/v1/tokens/{id}"), None).status, 204);
        with(&controller, its, "GET", "/v1/sandboxes", None).refused(401);
    }
    for bad in [json!({ "scope": "root" }), json!({ "scope": "run", "tags": ["a/b"] }), json!({})] {
        assert_eq!(with(&controller, Some(&admin), "POST", "/v1/tokens", Some(&bad)).status, 400, "{bad}");
    }
}

#[test]
fn the_end_of_the_last_token_opens_no_door() {
    let controller = Controller::start();
    assert_eq!(with(&controller, None, "GET", "/v1/sandboxes", None).status, 200);
    let (id, admin) = token(&controller, None, &json!({ "scope": "admin" }));
    assert_eq!(with(&controller, Some(&admin), "DELETE", &format!("/v1/tokens/{id}"), None).status, 204);
    with(&controller, Some(&admin), "GET", "/v1/sandboxes", None).refused(401);
    with(&controller, None, "GET", "/v1/sandboxes", None).refused(401);
    with(&controller, None, "POST", "/v1/tokens", Some(&json!({ "scope": "admin" }))).refused(401);
}

#[test]
fn one_that_is_bound_to_tags_names_no_other() {
    let controller = Controller::furnished();
    let fork = |tag: &str| json!({ "snapshot_tag": tag, "n": 1 });
    let made = controller.post("/v1/snapshots", r#"{"tag":"py-a","image":"py"}"#);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let (_, admin) = token(&controller, None, &json!({ "scope": "admin" }));
    let (_, bound) = token(&controller, Some(&admin), &json!({ "scope": "run", "tags": ["py*"] }));
    let (_, other) = token(&controller, Some(&admin), &json!({ "scope": "run", "tags": ["js*"] }));
    let forked = with(&controller, Some(&bound), "POST", "/v1/sandboxes", Some(&fork("py-a")));
    assert_eq!(forked.status, 201, "{}", String::from_utf8_lossy(&forked.body));
    let id = forked.json::<Value>()[0]["id"].as_str().unwrap().to_owned();
    // To one who may not name it, it is not there.
    assert_eq!(with(&controller, Some(&other), "POST", "/v1/sandboxes", Some(&fork("py-a"))).status, 404);
    assert_eq!(with(&controller, Some(&other), "GET", &format!("/v1/sandboxes/{id}"), None).status, 404);
    let seen: Value = with(&controller, Some(&other), "GET", "/v1/sandboxes", None).json();
    assert_eq!(seen, json!([]));
    assert_eq!(with(&controller, Some(&bound), "DELETE", &format!("/v1/sandboxes/{id}"), None).status, 204);
}

#[test]
fn a_tenant_gets_what_its_quota_says() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"shared","image":"py"}"#).status, 201);
    let quota = json!({ "sandboxes": 2 });
    let headers = [("Content-Type", "application/json")];
    assert_eq!(controller.send("PUT", "/v1/tenants/team", &headers, &body_of(&quota)).status, 204);
    let (_, admin) = token(&controller, None, &json!({ "scope": "admin" }));
    let (_, its) =
        token(&controller, Some(&admin), &json!({ "scope": "run", "tenant": "team", "tags": ["shared"] }));
    let fork = |n: u32| {
        let asked = json!({ "snapshot_tag": "shared", "n": n });
        with(&controller, Some(&its), "POST", "/v1/sandboxes", Some(&asked))
    };
    let first = fork(2);
    assert_eq!(first.status, 201, "{}", String::from_utf8_lossy(&first.body));
    let refused = fork(1).refused(429);
    assert!(refused.error.contains('2'), "{}", refused.error);
    // What is nobody's or another's is not seen.
    let all: Value = with(&controller, Some(&admin), "GET", "/v1/sandboxes", None).json();
    let seen: Value = with(&controller, Some(&its), "GET", "/v1/sandboxes", None).json();
    assert_eq!((all.as_array().unwrap().len(), seen.as_array().unwrap().len()), (2, 2));
    for sandbox in seen.as_array().unwrap() {
        let path = format!("/v1/sandboxes/{}", sandbox["id"].as_str().unwrap());
        assert_eq!(with(&controller, Some(&its), "DELETE", &path, None).status, 204);
    }
    let again = fork(1);
    assert_eq!(again.status, 201);
    let path = format!("/v1/sandboxes/{}", again.json::<Value>()[0]["id"].as_str().unwrap());
    assert_eq!(with(&controller, Some(&admin), "DELETE", &path, None).status, 204);
}

#[test]
fn every_change_is_a_line_and_a_changed_line_is_found() {
    let controller = Controller::start();
    let (id, admin) = token(&controller, None, &json!({ "scope": "admin" }));
    let admin = Some(admin.as_str());
    assert_eq!(with(&controller, admin, "DELETE", "/v1/sandboxes/sb-0-0", None).status, 404);
    controller.delete("/v1/sandboxes/sb-0-0").refused(401);
    let lines: Value = with(&controller, admin, "GET", "/v1/audit", None).json();
    let told: Vec<_> = lines
        .as_array()
        .unwrap()
        .iter()
        .map(|l| (l["who"].as_str().unwrap(), l["what"].as_str().unwrap(), l["status"].as_u64().unwrap()))
        .collect();
    let own = format!("token:{id}");
    assert_eq!(
        told,
        [
            ("open", "POST /v1/tokens", 201),
            (&own, "DELETE /v1/sandboxes/{id}", 404),
            ("nobody", "DELETE /v1/sandboxes/{id}", 401)
        ]
    );
    let verify = || -> Value { with(&controller, admin, "GET", "/v1/audit/verify", None).json() };
    assert_eq!((&verify()["sound"], &verify()["lines"]), (&json!(true), &json!(3)));
    let folder = controller.folder.path().join("root/audit");
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("forkd_"), "no token is written: {text}");
    std::fs::write(&file, text.replace("\"status\":404", "\"status\":204")).unwrap();
    let report = verify();
    assert_eq!(report["sound"], false);
    assert!(!report["problems"].as_array().unwrap().is_empty());
}

#[test]
fn pages_from_elsewhere_and_names_that_only_point_here_are_refused() {
    let controller = Controller::start();
    controller.send("GET", "/v1/sandboxes", &[("Origin", "https://evil.example")], b"").refused(403);
    let address = controller.address;
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(
        &mut stream,
        b"GET /v1/sandboxes HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    )
    .unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403") || answer.starts_with("HTTP/1.1 421"), "{answer}");
}

#[test]
fn the_same_key_gives_the_same_answer_and_makes_nothing_twice() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"k","image":"py"}"#).status, 201);
    let ask = |key: &str, body: &Value| {
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", key)];
        controller.send("POST", "/v1/sandboxes", &headers, &body_of(body))
    };
    let fork = json!({ "snapshot_tag": "k", "n": 1 });
    let first = ask("a-1", &fork);
    assert_eq!(first.status, 201);
    let again = ask("a-1", &fork);
    assert_eq!((again.status, &again.body), (201, &first.body));
    assert!(again.head.to_ascii_lowercase().contains("idempotent-replayed: true"));
    let other = ask("a-1", &json!({ "snapshot_tag": "k", "n": 2 }));
    assert_eq!(other.refused(422).code, "key_reused");
    // What was refused stays refused; what could not be had may be asked for again.
    assert_eq!(ask("a-2", &json!({ "snapshot_tag": "none", "n": 1 })).status, 404);
    assert_eq!(ask("a-2", &json!({ "snapshot_tag": "none", "n": 1 })).status, 404);
    controller.mood("die");
    let failed = ask("a-3", &fork);
    assert!(failed.status >= 500, "{}", failed.status);
    assert_eq!(ask("a-3", &fork).status, 201);
    for bad in ["", "two words", &"x".repeat(256)] {
        ask(bad, &fork).refused(400);
    }
    let listed: Value = controller.get("/v1/sandboxes").json();
    assert_eq!(listed.as_array().unwrap().iter().filter(|s| s["ended"].is_null()).count(), 2);
}

#[test]
fn of_many_requests_with_one_key_one_is_carried_out() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"k","image":"py"}"#).status, 201);
    let fork = json!({ "snapshot_tag": "k", "n": 1 }).to_string();
    let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "one")];
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| controller.send("POST", "/v1/sandboxes", &headers, fork.as_bytes()).status)
            })
            .collect();
        asked.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(statuses.iter().all(|s| [201, 409].contains(s)), "{statuses:?}");
    let listed: Value = controller.get("/v1/sandboxes").json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[test]
fn a_workspace_is_suspended_and_resumed_under_its_name() {
    let controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"w","image":"py"}"#).status, 201);
    let made = controller.post("/v1/workspaces", r#"{"name":"mine","snapshot_tag":"w"}"#);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let made: Value = made.json();
    assert_eq!((&made["status"], &made["source_snapshot_tag"]), (&json!("running"), &json!("w")));
    let sandbox = made["live_sandbox_id"].as_str().unwrap().to_owned();
    controller.post("/v1/workspaces", r#"{"name":"mine","snapshot_tag":"w"}"#).refused(409);
    controller.post("/v1/workspaces", r#"{"name":"a/b","snapshot_tag":"w"}"#).refused(400);
    controller.post("/v1/workspaces", r#"{"name":"other","snapshot_tag":"none"}"#).refused(404);
    controller.send("POST", "/v1/workspaces/mine/resume", &[], b"").refused(409);
    let suspended = controller.post("/v1/workspaces/mine/suspend", "{}");
    assert_eq!(suspended.status, 200, "{}", String::from_utf8_lossy(&suspended.body));
    assert_eq!(suspended.json::<Value>()["status"], "suspended");
    let resumed: Value = controller.send("POST", "/v1/workspaces/mine/resume", &[], b"").json();
    assert_eq!((&resumed["status"], &resumed["live_sandbox_id"]), (&json!("running"), &json!(sandbox)));
    assert_eq!(controller.get("/v1/workspaces").json::<Value>().as_array().unwrap().len(), 1);
    assert_eq!(controller.delete(&format!("/v1/sandboxes/{sandbox}")).status, 204);
    assert_eq!(controller.get("/v1/workspaces/mine").json::<Value>()["status"], "stale");
    controller.post("/v1/workspaces/mine/suspend", "{}").refused(409);
    assert_eq!(controller.delete("/v1/workspaces/mine").status, 204);
    controller.get("/v1/workspaces/mine").refused(404);
}

#[test]
fn what_has_a_name_or_a_key_is_found_by_the_next_controller() {
    let mut controller = Controller::furnished();
    assert_eq!(controller.post("/v1/snapshots", r#"{"tag":"w","image":"py"}"#).status, 201);
    let keyed = |controller: &Controller| {
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", "one")];
        controller.send("POST", "/v1/workspaces", &headers, br#"{"name":"runs","snapshot_tag":"w"}"#)
    };
    let made = keyed(&controller);
    assert_eq!(made.status, 201, "{}", String::from_utf8_lossy(&made.body));
    let lies: Value = controller.post("/v1/workspaces", r#"{"name":"lies","snapshot_tag":"w"}"#).json();
    assert_eq!(controller.post("/v1/workspaces/lies/suspend", "").status, 200);
    let happened: Value = controller.get("/v1/events").json();
    controller.restart();
    let again = keyed(&controller);
    assert_eq!((again.status, &again.body), (201, &made.body));
    let status = |name: &str| -> Value {
        controller.get(&format!("/v1/workspaces/{name}")).json::<Value>()["status"].clone()
    };
    assert_eq!((status("runs"), status("lies")), (json!("running"), json!("suspended")));
    let resumed: Value = controller.post("/v1/workspaces/lies/resume", "").json();
    assert_eq!(resumed["live_sandbox_id"], lies["live_sandbox_id"]);
    let after: Value = controller.get("/v1/events").json();
    let kept = happened.as_array().unwrap().len();
    assert_eq!(after.as_array().unwrap()[..kept], happened.as_array().unwrap()[..]);
    assert_eq!(after.as_array().unwrap()[kept]["kind"], "sandbox.resumed");
}
