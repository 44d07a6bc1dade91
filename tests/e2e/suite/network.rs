//! What leaves a sandbox, and what does not. The outside is made here, and no packet gets any further.

mod world;

use serde_json::json;

use crate::support::{Child, Children, Snapshot, alone, crash, forkd, host_sh, numpy, send};
use world::{HOST, PUBLIC, SPECIAL, World};

/// In the interpreter of a guest: whom it meets at an address, or how that failed.
const MEETS: &str = "
import socket
def meets(address, port=80, timeout=60):
    try:
        with socket.create_connection((address, port), timeout=timeout) as stream:
            return stream.recv(100).decode()
    except socket.gaierror:
        return 'no name'
    except OSError as e:
        return 'refused' if e.errno else 'silence'

def talks(stream):
    stream.settimeout(8)
    try:
        stream.send(b'?')
        return stream.recv(1) == b'!'
    except OSError:
        return False
";

fn children(n: usize, net: &[&str]) -> Children {
    let children = Children::fork_with(numpy(), n, net);
    children.iter().for_each(|child| drop(child.eval(MEETS)));
    children
}

fn meets(child: &Child, address: &str) -> String {
    child.value(&format!("meets({address:?})")).as_str().unwrap().to_owned()
}

/// Reaches it, by an address of its own.
#[track_caller]
fn reaches(child: &Child, address: &str) {
    assert_eq!(meets(child, address), address);
}

#[track_caller]
fn is_refused(child: &Child, address: &str) {
    assert_eq!(meets(child, address), "refused", "{address}");
}

/// A file of destinations.
fn list(destinations: &[&str]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), destinations.join("\n")).unwrap();
    file
}

#[test]
fn an_open_sandbox_reaches_the_outside_by_address_and_name_and_nothing_that_is_special() {
    let _world = alone();
    let _outside = World::new();
    let two = children(2, &["--net", "allow"]);
    for child in two.iter() {
        PUBLIC.iter().for_each(|address| reaches(child, address));
        assert_eq!(meets(child, "one.test"), "203.0.113.10");
        assert_eq!(meets(child, "no.test"), "no name");
        SPECIAL.iter().for_each(|address| is_refused(child, address));
        let (name, own) =
            (child.info.netns.as_deref().unwrap(), child.sh("hostname; getent hosts $(hostname) localhost"));
        assert!(
            name.starts_with("forkd-") && own.starts_with(&child.id) && own.contains("localhost"),
            "{own}"
        );
    }
    // The host, by any of its addresses; and each other, which have the same address inside and others outside.
    assert_eq!(two[0].value(&format!("meets('{HOST}', 8088, 8)")), "silence");
    let outer = host_sh(&format!("ip -n {} -4 -o addr show out", two[1].info.netns.as_deref().unwrap()));
    let outer = outer.split_whitespace().nth(3).unwrap().split('/').next().unwrap().to_owned();
    assert_eq!(meets(&two[0], &outer), "refused");
    let inside = |child: &Child| {
        child.sh("cat /sys/class/net/eth0/address; cat /proc/net/fib_trie | grep -m1 192.0.0.2")
    };
    assert_eq!(inside(&two[0]), inside(&two[1]));
}

#[test]
fn what_is_listed_is_reached_and_nothing_else_and_a_change_holds_at_once() {
    let _world = alone();
    let _outside = World::new();
    let allowed = list(&["203.0.113.11:80", "one.test", "*.one.test:443", "169.254.169.254"]);
    let children = children(1, &["--net", allowed.path().to_str().unwrap()]);
    let child = &children[0];
    reaches(child, "203.0.113.11");
    reaches(child, "169.254.169.254");
    is_refused(child, "203.0.113.10");
    assert_eq!(meets(child, "one.test"), "203.0.113.10");
    reaches(child, "203.0.113.10");
    assert_eq!(meets(child, "two.test"), "no name");
    assert_eq!(child.value("meets('sub.one.test', 443)"), "203.0.113.11");
    is_refused(child, "10.9.9.9");

    // Open connections, too, are subject to what holds now.
    child.eval("stream = socket.create_connection(('203.0.113.11', 80)); greeting = stream.recv(100)");
    assert_eq!(child.value("talks(stream)"), true);
    forkd(&["net", &child.id, "deny"]).ok();
    is_refused(child, "203.0.113.11");
    assert_eq!(meets(child, "one.test"), "no name");
    assert_eq!(child.value("talks(stream)"), false);
    let path = child.path("network");
    let seen = send("PUT", &path, Some(json!(["203.0.113.12", "10.9.0.0/16"]))).with_status(200).json();
    assert_eq!(seen["network"], json!(["203.0.113.12", "10.9.0.0/16"]));
    reaches(child, "10.9.9.9");
    assert_eq!(
        send("PUT", &path, Some(json!(["127.0.0.1"]))).with_status(400).json()["code"],
        "bad_network_policy"
    );

    // Another controller goes on with what holds.
    crash(&[]);
    reaches(child, "10.9.9.9");
    is_refused(child, "203.0.113.11");
    let branch = Snapshot::named("e2e-net");
    forkd(&["branch", &child.id, "--tag", &branch.tag]).ok();
    let later = Children::fork(&branch.tag, 1);
    reaches(&later[0], "10.9.9.9");
    is_refused(&later[0], "203.0.113.11");
}

#[test]
fn one_without_a_network_has_none() {
    let _world = alone();
    let children = children(1, &["--net", "none"]);
    let child = &children[0];
    assert_eq!((child.info.netns.as_deref(), meets(child, "203.0.113.10").as_str()), (None, "refused"));
    let refused = send("PUT", &child.path("network"), Some(json!("allow"))).with_status(409).json();
    assert_eq!(refused["code"], "without_network");
}
