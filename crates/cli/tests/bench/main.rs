//! `forkd bench` against a controller that plays its part: what it asks, what it reports, and that it leaves
//! nothing running.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod branch;
mod chain;
mod controller;
mod exec;

use serde_json::{Value, json};

use controller::{Controller, Life};

#[test]
fn every_child_is_asked_once_and_ended() {
    let controller = Controller::start(Life::default());
    let out = controller.bench(&["--n", "1,3", "--calls", "20", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let round = &report["rounds"][1];
    assert_eq!(
        (&round["n"], &round["restored_us"], &round["answered_us"]),
        (&json!(3), &json!(3000), &json!(6000))
    );
    assert_eq!(round["first_eval"]["count"], 3);
    assert_eq!((&report["eval"]["warm"]["count"], &report["reused"]), (&json!(20), &json!(true)));
    assert_eq!(report["stopped"], Value::Null);
    assert_eq!(report["goals"][0]["reached"], false, "2 MiB are more than a monitor should take");
    let evals = controller.life.evals.lock().unwrap();
    assert_eq!(evals.iter().filter(|code| code.contains("numpy")).count(), 4);
    assert_eq!((controller.left(), *controller.life.born.lock().unwrap()), (0, 5));
}

#[test]
fn what_was_reached_is_shown_where_there_is_no_room_for_more() {
    let controller = Controller::start(Life::default());
    let out = controller.bench(&["--n", "2,9,3", "--calls", "1"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("Stopped early: no memory is left"), "{text}");
    assert!(text.contains("NOT reached  private memory of a monitor outside its guest, N=2"), "{text}");
    assert_eq!((controller.left(), *controller.life.born.lock().unwrap()), (0, 3));
}

#[test]
fn a_wrong_answer_measures_nothing_and_leaves_nothing() {
    let controller = Controller::start(Life { answers_wrongly: true, ..Life::default() });
    let out = controller.bench(&["--n", "2"]);
    assert_eq!(out.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&out.stderr).contains("gave 3 where 45 is right"));
    assert_eq!(controller.left(), 0);
}

#[test]
fn flags_of_one_kind_do_not_go_with_the_other() {
    let controller = Controller::start(Life::default());
    for args in
        [&["--bare", "--tag", "x"][..], &["--against", "1:2:3"], &["--n", "0"], &["--bare", "--against", "1"]]
    {
        assert_eq!(controller.bench(args).status.code(), Some(2), "{args:?}");
    }
}
