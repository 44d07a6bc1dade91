//! Watching folders by the sandbox API.
#![allow(clippy::unwrap_used, reason = "only tests call this")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Agent, Events, until};
use serde_json::{Value, json};

/// Reads events until one is of that kind and name.
fn expect(events: &mut Events, kind: &str, name: &str) -> Value {
    loop {
        let (flags, message) = events.next();
        assert_eq!(flags, 0, "ended before {kind} {name}: {message}");
        let event = &message["filesystem"];
        if event["type"] == format!("EVENT_TYPE_{kind}") && event["name"] == name {
            return event.clone();
        }
    }
}

fn watch(agent: &Agent, path: &Path, more: Value) -> Events {
    let mut request = json!({ "path": path });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut events = agent.stream("filesystem.Filesystem/WatchDir", "", &request);
    assert_eq!(events.next(), (0, json!({ "start": {} })));
    events
}

#[test]
fn every_kind_of_event_is_told_in_order() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let mut events = watch(&agent, tmp.path(), json!({}));
    let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
    fs::write(&a, "x").unwrap();
    assert!(expect(&mut events, "CREATE", "a").get("entry").is_none());
    expect(&mut events, "WRITE", "a");
    fs::set_permissions(&a, fs::Permissions::from_mode(0o600)).unwrap();
    expect(&mut events, "CHMOD", "a");
    fs::rename(&a, &b).unwrap();
    expect(&mut events, "RENAME", "a");
    expect(&mut events, "CREATE", "b");
    fs::remove_file(&b).unwrap();
    expect(&mut events, "REMOVE", "b");
}

#[test]
fn below_a_recursive_watch_nothing_is_missed() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    fs::create_dir_all(tmp.path().join("there/deep")).unwrap();
    let mut events = watch(&agent, tmp.path(), json!({ "recursive": true, "includeEntry": true }));
    fs::write(tmp.path().join("there/deep/file"), "x").unwrap();
    let event = expect(&mut events, "CREATE", "there/deep/file");
    assert_eq!(event["entry"]["type"], "FILE_TYPE_FILE");
    // Made at once with what is in it: whichever way the kernel tells, it is told.
    fs::create_dir_all(tmp.path().join("new/er")).unwrap();
    fs::write(tmp.path().join("new/er/file"), "x").unwrap();
    expect(&mut events, "CREATE", "new/er/file");
    // A plain watch sees the folder only.
    let mut flat = watch(&agent, tmp.path(), json!({}));
    fs::write(tmp.path().join("new/unseen"), "x").unwrap();
    fs::write(tmp.path().join("last"), "x").unwrap();
    let (_, first) = flat.next();
    assert_eq!(first["filesystem"]["name"], "last");
}

#[test]
fn watchers_that_are_asked_give_each_event_once() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    let call = |method: &str, body: &Value| agent.unary(&format!("filesystem.Filesystem/{method}"), body);
    let (status, made) = call("CreateWatcher", &json!({ "path": tmp.path() }));
    assert_eq!(status, 200, "{made}");
    assert_eq!(call("GetWatcherEvents", &made).1, json!({ "events": [] }));
    fs::create_dir(tmp.path().join("a")).unwrap();
    let mut seen = json!(null);
    until("an event is there", || {
        seen = call("GetWatcherEvents", &made).1["events"].clone();
        !seen.as_array().unwrap().is_empty()
    });
    assert_eq!(seen, json!([{ "name": "a", "type": "EVENT_TYPE_CREATE" }]));
    assert_eq!(call("GetWatcherEvents", &made).1, json!({ "events": [] }));
    assert_eq!(call("RemoveWatcher", &made), (200, json!({})));
    for method in ["GetWatcherEvents", "RemoveWatcher"] {
        assert_eq!(call(method, &made).0, 404, "{method}");
    }
}

#[test]
fn what_cannot_be_watched_is_said_at_once() {
    let agent = Agent::plain();
    let tmp = tempfile::tempdir().unwrap();
    fs::write(tmp.path().join("file"), "x").unwrap();
    let refusal = |path: &Path| {
        let (flags, message) =
            agent.stream("filesystem.Filesystem/WatchDir", "", &json!({ "path": path })).next();
        assert_eq!(flags, 2);
        message["error"]["code"].as_str().unwrap().to_owned()
    };
    assert_eq!(refusal(&tmp.path().join("none")), "not_found");
    assert_eq!(refusal(&tmp.path().join("file")), "invalid_argument");
}
