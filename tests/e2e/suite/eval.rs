//! Code in the warm interpreter.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Children, bare, each, forkd, numpy, post, together};

#[test]
fn every_child_has_numpy_at_hand() {
    let _world = together();
    let children = Children::fork(numpy(), 4);
    let answers = each(&children, |child| {
        let ran = forkd(&["eval", &child.id, "--", "numpy.zeros(5).tolist()"]).ok();
        (ran.text(), child.value("numpy.arange(5).sum().item()"))
    });
    for (printed, sum) in answers {
        assert_eq!(printed, "[0.0, 0.0, 0.0, 0.0, 0.0]\n");
        assert_eq!(sum, 10);
    }
}

#[test]
fn a_value_comes_as_its_repr_and_as_json_where_it_has_one() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let answer = |code: &str| children[0].eval(code);
    let both = answer("{'a': [1, 2.5, None, 'grün']}");
    assert_eq!(both.result.as_deref(), Some("{'a': [1, 2.5, None, 'grün']}"));
    assert_eq!(
        serde_json::from_str::<Value>(&both.result_json.unwrap()).unwrap(),
        json!({"a": [1, 2.5, null, "grün"]})
    );
    let only_repr = answer("{1, 2}");
    assert_eq!((only_repr.result.as_deref(), only_repr.result_json), (Some("{1, 2}"), None));
    assert_eq!(answer("None").result, None);
}

#[test]
fn statements_run_and_what_they_leave_stays() {
    let _world = together();
    let children = Children::fork(numpy(), 2);
    let first =
        children[0].eval("import math\ndef area(r):\n    return round(math.pi * r * r)\nprint('defined')");
    assert_eq!((first.result, first.error, first.stdout.as_str()), (None, None, "defined\n"));
    assert_eq!(children[0].value("area(10)"), 314);
    assert_eq!(children[0].value("r = 3\narea(r)"), 28);
    let other = children[1].eval("area(10)");
    assert_eq!(other.error.as_deref(), Some("NameError: name 'area' is not defined"));
}

#[test]
fn an_exception_comes_with_type_message_and_traceback() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let code = "def divide(a, b):\n    return a / b\ndivide(1, 0)";
    let answer = children[0].eval(code);
    assert_eq!(answer.error.as_deref(), Some("ZeroDivisionError: division by zero"));
    assert_eq!((answer.result, answer.exit_code), (None, 1));
    let traceback = answer.traceback.unwrap();
    assert!(traceback.starts_with("Traceback (most recent call last):\n"), "{traceback}");
    assert!(traceback.contains("line 2, in divide\n    return a / b\n"), "{traceback}");
    let ran = forkd(&["eval", &children[0].id, "--", code]).ends_with(1);
    assert!(ran.stderr.contains("in divide") && ran.text().is_empty(), "{}", ran.stderr);
    for exits in ["raise SystemExit(3)", "import sys; sys.exit(3)", "exit(3)", "this is no python"] {
        assert!(children[0].eval(exits).error.is_some(), "{exits}");
    }
    assert_eq!(children[0].value("divide(6, 3)"), 2.0);
}

#[test]
fn an_endless_loop_ends_at_its_timeout_and_the_interpreter_lives_on() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let child = &children[0];
    child.eval("import os\nkept, pid = 'still here', os.getpid()");
    for endless in ["while True: pass", "import time\nwhile True: time.sleep(1000)"] {
        let answer =
            post(&child.path("eval"), json!({ "code": endless, "timeout_secs": 1 })).with_status(200).json();
        assert_eq!(answer["timed_out"], true, "{answer}");
        assert!(answer["error"].as_str().unwrap().starts_with("KeyboardInterrupt"), "{answer}");
        assert_eq!(child.value("[kept, pid == os.getpid()]"), json!(["still here", true]));
    }
}

#[test]
fn a_warm_child_does_not_import_again() {
    let _world = together();
    let children = Children::fork(numpy(), 1);
    let child = &children[0];
    assert_eq!(
        child.value("[m in __import__('sys').modules for m in ('numpy', 'random', 'uuid')]"),
        json!([true, true, true])
    );
    let ping = post(&child.path("ping"), Value::Null).with_status(200).json();
    assert_eq!((&ping["warmup_ready"], ping["numpy_version"].is_string()), (&json!(true), true), "{ping}");
    let warm = child.eval("import numpy\nnumpy.zeros(3).sum()").micros;
    let began = Instant::now();
    child.exec(&["python3", "-c", "import numpy\nprint(numpy.zeros(3).sum())"]).ok();
    let cold = began.elapsed();
    assert!(Duration::from_micros(warm) * 10 < cold, "warm {warm} µs, cold {cold:?}");
}

#[test]
fn a_child_without_a_warm_interpreter_starts_one_when_asked() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let ping = post(&children[0].path("ping"), Value::Null).with_status(200).json();
    assert_eq!(ping["warmup_ready"], false, "{ping}");
    assert_eq!(children[0].value("6 * 7"), 42);
    children[0].eval("x = 5");
    assert_eq!(children[0].value("x + 1"), 6);
}
