//! `forkd bench exec`.

use crate::controller::{Controller, Life};

#[test]
fn what_the_guest_took_is_taken_off_and_the_echo_goes_the_same_way() {
    let controller = Controller::start(Life::default());
    let report = controller.report(&["exec", "--calls", "30", "--stream-mib", "1"]);
    for kind in ["eval", "exec"] {
        let figures = &report[kind];
        for part in ["round_trip", "inside", "own"] {
            assert_eq!(figures[part]["count"], 30, "{kind} {part}: {figures}");
        }
        assert_eq!(figures["inside"]["p99_us"], 5, "{figures}");
        let (own, all) = (&figures["own"]["p50_us"], &figures["round_trip"]["p50_us"]);
        assert_eq!(own.as_u64().unwrap() + 5, all.as_u64().unwrap(), "{figures}");
    }
    assert_eq!(report["echo"]["count"], 30);
    for stream in ["output", "copy"] {
        assert_eq!(report["streams"][stream]["bytes"], 1 << 20, "{report}");
    }
    assert_eq!(report["goals"].as_array().unwrap().len(), 3);
    assert_eq!(controller.left(), 0);
}

#[test]
fn a_wrong_answer_measures_nothing_and_leaves_nothing() {
    let controller = Controller::start(Life { answers_wrongly: true, ..Life::default() });
    assert_eq!(controller.bench(&["exec", "--calls", "1"]).status.code(), Some(7));
    assert_eq!(controller.left(), 0);
}
