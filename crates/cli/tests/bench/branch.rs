//! `forkd bench branch`.

use serde_json::{Value, json};

use crate::controller::{Controller, Life};

#[test]
fn every_way_is_measured_and_nothing_stays() {
    let controller = Controller::start(Life::default());
    let report = controller.report(&["branch", "--changed-mib", "48", "--sizes", "512,2048"]);
    let modes = report["modes"].as_array().unwrap();
    let gaps: Vec<_> =
        modes.iter().map(|m| (m["mode"].as_str().unwrap(), m["gap_ms"].as_f64().unwrap())).collect();
    assert_eq!(gaps, [("live", 10.0), ("diff", 100.0), ("full", 150.0)]);
    assert_eq!((&modes[0]["ticks_after"], &modes[0]["workload_pause_ms"]), (&json!(600), &json!(6.0)));
    assert_eq!((&report["reused"], &report["stopped"]), (&json!(true), &Value::Null));
    assert_eq!(report["to_child"]["branched"]["count"], report["to_child"]["plain"]["count"]);
    assert_eq!(report["to_child"]["changed_mib"], 32);
    let sizes: Vec<_> = report["sizes"].as_array().unwrap().iter().map(|s| &s["memory_mib"]).collect();
    assert_eq!(sizes, [&json!(512), &json!(2048)]);
    // A tenth of diff's gap, a fifteenth of full's, less than two pauses.
    let reached: Vec<_> = report["goals"].as_array().unwrap().iter().map(|g| &g["reached"]).collect();
    assert_eq!(reached[..3], [&json!(true), &json!(false), &json!(true)]);

    let branches = controller.life.branches.lock().unwrap();
    assert_eq!(branches.iter().filter(|b| b["wait"] == false).count(), 1);
    let evals = controller.life.evals.lock().unwrap();
    let rewritten = evals.iter().filter(|code| code.as_str() == "ticker.rewrite()").count();
    assert_eq!(rewritten, branches.len(), "a branch without changes tells nothing");
    assert!(evals[0].contains("Ticker(48)"), "{}", evals[0]);
    assert_eq!((controller.left(), controller.made()), (0, vec![]));
}

#[test]
fn what_was_measured_before_a_branch_failed_is_shown() {
    let controller = Controller::start(Life { refused: 2, ..Life::default() });
    let out = controller.bench(&["branch"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("Stopped early: the guest did not freeze"), "{text}");
    assert!(text.contains("not known    longest gap, live against diff"), "{text}");
    assert_eq!((controller.left(), controller.made()), (0, vec![]));
}

#[test]
fn where_nothing_could_be_measured_it_fails_and_nothing_stays() {
    let controller = Controller::start(Life { refused: 1, ..Life::default() });
    assert_eq!(controller.bench(&["branch"]).status.code(), Some(4));
    assert_eq!((controller.left(), controller.made()), (0, vec![]));
}

#[test]
fn more_than_a_guest_holds_is_refused_before_there_is_one() {
    let controller = Controller::start(Life::default());
    for args in
        [&["branch", "--changed-mib", "900"][..], &["branch", "--changed-mib", "400", "--sizes", "512"]]
    {
        let out = controller.bench(args);
        assert_eq!(out.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&out.stderr).contains("--changed-mib"));
    }
    assert_eq!(*controller.life.born.lock().unwrap(), 0);
}
