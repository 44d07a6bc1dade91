//! A controller with an image, a kernel, a snapshot and two sandboxes, whose monitors are fakes: for tests of the API
//! that need no guest. It prints its address, and ends when its standard input does.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "it is part of tests, which end at the first surprise"
)]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::io::{Read, Write};

use support::Controller;

fn main() {
    let controller = Controller::furnished();
    let made = [
        controller.post("/v1/snapshots", r#"{"tag":"warm","image":"py"}"#),
        controller.post("/v1/sandboxes", r#"{"snapshot_tag":"warm","n":2,"metadata":{"for":"tests"}}"#),
        controller.post("/v1/workspaces", r#"{"name":"mine","snapshot_tag":"warm"}"#),
    ];
    for answer in made {
        assert_eq!(answer.status, 201, "{}", String::from_utf8_lossy(&answer.body));
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{}", controller.address).unwrap();
    drop(out);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
