//! `forkd bench chain`.

use serde_json::{Value, json};

use crate::controller::{Controller, Life};

const SMALL: [&str; 7] = ["chain", "--depth", "4", "--rounds", "2", "-n", "3"];

#[test]
fn a_chain_grows_from_its_head_is_forked_and_goes() {
    let controller = Controller::start(Life::default());
    let report = controller.report(&SMALL);
    let subjects = report["subjects"].as_array().unwrap();
    let depths: Vec<_> = subjects.iter().map(|s| s["depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [1, 4, 1]);
    for subject in subjects {
        assert_eq!(subject["answered"]["count"], 2 * 3, "{subject}");
    }
    assert_eq!(subjects[1]["upper_extents"], 3 * 7);
    let reached: Vec<_> = report["goals"].as_array().unwrap().iter().map(|g| &g["reached"]).collect();
    assert_eq!(reached, [&json!(true); 2]);
    assert_eq!(report["stopped"], Value::Null);

    let branches = controller.life.branches.lock().unwrap();
    assert_eq!(branches.len(), 3);
    assert!(branches.iter().all(|b| b["mode"] == "diff"), "{branches:?}");
    // Three that changed something, one uncounted child of each subject, and the rounds.
    assert_eq!(*controller.life.born.lock().unwrap(), 3 + 3 + 3 * 2 * 3);
    assert_eq!((controller.left(), controller.made()), (0, vec![]));
}

#[test]
fn a_chain_is_kept_where_that_is_asked_for() {
    let controller = Controller::start(Life::default());
    let report = controller.report(&[&SMALL[..], &["--keep"]].concat());
    let kept: Vec<_> =
        report["kept"].as_array().unwrap().iter().map(|t| t.as_str().unwrap().to_owned()).collect();
    assert_eq!((kept.len(), controller.made()), (4, kept));
    assert_eq!(controller.left(), 0);
}

#[test]
fn half_a_chain_does_not_stay() {
    let controller = Controller::start(Life { refused: 3, ..Life::default() });
    let out = controller.bench(&SMALL);
    assert_eq!(out.status.code(), Some(4), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!((controller.left(), controller.made()), (0, vec![]));
}

#[test]
fn forks_that_find_no_room_leave_no_chain() {
    let controller = Controller::start(Life::default());
    let out = controller.bench(&["chain", "--depth", "2", "-n", "9"]);
    assert_eq!(out.status.code(), Some(5), "nothing that counts was forked");
    assert_eq!((controller.left(), controller.made()), (0, vec![]));
}

#[test]
fn a_chain_is_longer_than_what_it_begins_with() {
    let controller = Controller::start(Life::default());
    assert_eq!(controller.bench(&["chain", "--depth", "1"]).status.code(), Some(2));
    assert_eq!(controller.bench(&["--n", "1", "chain"]).status.code(), Some(2));
}
