//! The warm interpreter.

mod common;

use std::time::{Duration, Instant};

use common::{Agent, until};
use serde_json::json;

#[test]
fn expressions_statements_and_json() {
    let agent = Agent::plain();
    assert_eq!(agent.health()["warm"], false);
    let (status, warm) =
        agent.verb("warm", &json!({"code": "import math\nx = [1, 'a', None]", "timeout_ms": 0}));
    assert_eq!((status, &warm["error"]), (200, &json!(null)));
    assert_eq!(agent.health()["warm"], true);
    let value = agent.eval("x");
    assert_eq!(
        (value["result"].as_str(), value["result_json"].as_str()),
        (Some("[1, 'a', None]"), Some(r#"[1, "a", null]"#))
    );
    assert_eq!(agent.eval("y = 1")["result"], json!(null));
    assert_eq!(agent.eval("{1}")["result_json"], json!(null));
}

#[test]
fn errors_are_told_and_survived() {
    let agent = Agent::plain();
    agent.eval("kept = 1");
    let error = &agent.eval("def f():\n    return 1 / 0\nf()")["error"];
    assert_eq!(error["name"], "ZeroDivisionError");
    assert!(error["traceback"].as_str().unwrap().contains("return 1 / 0"));
    assert_eq!(agent.eval("import sys; sys.exit(3)")["error"]["name"], "SystemExit");
    assert_eq!(agent.eval("kept")["result"], "1");
}

#[test]
fn output_of_everything_is_captured() {
    let agent = Agent::plain();
    let code = "import os, sys, subprocess\nprint('python ä')\nprint('err', file=sys.stderr)\nsys.stdout.flush()\n\
                os.system('echo system; echo error >&2')\nsubprocess.run(['echo', 'sub'])\nos.write(1, b'raw\\n')\n\
                import ctypes\nctypes.CDLL(None).printf(b'c\\n')\nNone";
    let value = agent.eval(code);
    assert_eq!(value["stdout"], "python ä\nsystem\nsub\nraw\nc\n");
    assert_eq!(value["stderr"], "err\nerror\n");
    assert_eq!(agent.eval("1")["stdout"], "");
    let long = agent.eval("print('ä' * (9 << 20))");
    let text = long["stdout"].as_str().unwrap();
    assert_eq!((long["truncated"].as_bool(), text.len()), (Some(true), 16 << 20));
    let exact = agent.eval("import os\nfor _ in range(3000): n = os.write(1, b'x' * 1000)\n'ok'");
    assert_eq!(
        (exact["stdout"].as_str().unwrap().len(), exact["truncated"].as_bool()),
        (3_000_000, Some(false))
    );
}

#[test]
fn timeouts_interrupt_and_state_survives() {
    let agent = Agent::plain();
    agent.eval("kept = 7");
    for code in ["while True: pass", "import time\ntime.sleep(60)", "import os\nos.system('sleep 60')"] {
        let started = Instant::now();
        let value = agent.eval_within(code, 300);
        assert!(started.elapsed() < Duration::from_secs(4), "{code}");
        assert_eq!(value["timed_out"], true, "{code}: {value}");
        assert!(value["error"].is_object());
    }
    assert_eq!(agent.eval("kept")["result"], "7");
}

#[test]
fn code_that_swallows_interrupts_costs_the_state() {
    let agent = Agent::plain();
    agent.eval("kept = 7");
    let code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass";
    let started = Instant::now();
    let value = agent.eval_within(code, 300);
    assert!(started.elapsed() > Duration::from_secs(5));
    assert_eq!(
        (value["timed_out"].as_bool(), value["error"]["name"].as_str()),
        (Some(true), Some("TimeoutError"))
    );
    assert!(value["error"]["value"].as_str().unwrap().contains("state is lost"));
    assert_eq!(agent.eval("kept")["error"]["name"], "NameError");
}

#[test]
fn a_crash_is_told_and_the_next_one_starts_anew() {
    let agent = Agent::plain();
    let value = agent.eval("import os\nprint('last words', flush=True)\nos.kill(os.getpid(), 11)");
    assert_eq!(value["error"]["name"], "InterpreterEnded");
    assert!(value["error"]["value"].as_str().unwrap().contains("segmentation fault"), "{value}");
    assert_eq!(value["stdout"], "last words\n");
    assert_eq!(agent.eval("1 + 1")["result"], "2");
    agent.eval("import threading, os\nthreading.Timer(0.1, lambda: os._exit(1)).start()");
    until("its end is noticed while idle", || agent.health()["warm"] == false);
    assert_eq!(agent.eval("1 + 1")["result"], "2");
}

#[test]
fn evaluations_queue_and_a_caller_that_leaves_is_forgotten() {
    let agent = Agent::plain();
    agent.eval("n = 0\nimport time");
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| agent.eval("m = n\ntime.sleep(0.01)\nn = m + 1"));
        }
    });
    assert_eq!(agent.eval("n")["result"], "20");
    let body = json!({"code": "time.sleep(60)", "timeout_ms": 0}).to_string();
    let stream = agent.send("POST", "/forkd/v1/eval", "", body.as_bytes());
    drop(stream);
    let started = Instant::now();
    assert_eq!(agent.eval("n")["result"], "20");
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn an_image_without_python() {
    let agent = Agent::plain();
    let identity = common_identity("a", json!({"PATH": "/no/python/here"}));
    assert_eq!(agent.verb("identity", &identity).0, 200);
    let (status, refusal) = agent.verb("eval", &json!({"code": "1", "timeout_ms": 0}));
    assert_eq!((status, refusal["code"].as_str()), (422, Some("no_python")));
}

#[test]
fn a_new_identity_reseeds_once() {
    let agent = Agent::plain();
    agent.eval("import random, forkd\nrandom.seed(1)\na = random.random()\nrandom.seed(1)\ncalls = []\nforkd.after_fork(lambda: calls.append(1))");
    let numpy = agent.eval("import numpy")["error"].is_null();
    if numpy {
        agent.eval("numpy.random.seed(1)\nb = numpy.random.random()\nnumpy.random.seed(1)");
        assert!(agent.health()["numpy_version"].is_string());
        assert_eq!(agent.eval("numpy.zeros(5).tolist()")["result"], "[0.0, 0.0, 0.0, 0.0, 0.0]");
    } else {
        forkd_testkit::guard::met("numpy", Err("python3 here has no numpy".to_owned()));
    }
    let identity = common_identity("child-1", json!({"WHO": "child"}));
    let (status, answer) = agent.verb("identity", &identity);
    assert_eq!(status, 200, "{answer}");
    let names: Vec<&str> =
        answer["steps"].as_array().unwrap().iter().map(|step| step[0].as_str().unwrap()).collect();
    assert_eq!(names, ["environment", "interpreter_told", "thaw", "interpreter"]);
    assert_eq!(agent.eval("random.random() == a, calls")["result"], "(False, [1])");
    if numpy {
        assert_eq!(agent.eval("numpy.random.random() == b")["result"], "False");
    }
    assert_eq!(agent.verb("identity", &identity).1, answer);
    assert_eq!(agent.eval("calls")["result"], "[1]");
    assert_eq!(agent.health()["identity"], "child-1");
    assert_eq!(agent.exec(&["sh", "-c", "echo $WHO"]).text(), "child\n");
    agent.eval("@forkd.after_fork\ndef bad(): raise ValueError('not today')");
    let (status, refusal) = agent.verb("identity", &common_identity("child-2", json!({})));
    assert_eq!((status, refusal["code"].as_str()), (422, Some("after_fork_failed")));
    assert!(refusal["message"].as_str().unwrap().contains("not today"));
    assert_eq!(agent.health()["identity"], "child-1");
}

fn common_identity(id: &str, env: serde_json::Value) -> serde_json::Value {
    use base64::Engine as _;
    json!({
        "id": id, "hostname": id, "machine_id": "0123456789abcdef0123456789abcdef",
        "boot_id": "01234567-89ab-cdef-0123-456789abcdef", "realtime_ns": 1,
        "entropy_base64": base64::engine::general_purpose::STANDARD.encode([7; 64]), "env": env,
    })
}

#[test]
fn paused_then_who_it_was() {
    use base64::Engine as _;
    let Some(agent) = Agent::with_cgroups() else { return };
    let entropy = base64::engine::general_purpose::STANDARD.encode([7; 64]);
    let continuation = json!({ "entropy_base64": entropy, "realtime_ns": 1 });
    assert_eq!(agent.verb("identity", &common_identity("child", json!({}))).0, 200);
    agent.eval("import random, forkd\nrandom.seed(1)\na = random.random()\nrandom.seed(1)\ncalls = []\nforkd.after_fork(lambda: calls.append(1))");
    let (status, refusal) = agent.verb("continue", &continuation);
    assert_eq!((status, refusal["code"].as_str()), (400, Some("bad_request")), "it runs: {refusal}");
    assert_eq!(agent.verb("freeze", &json!({})).0, 200);
    assert_eq!(agent.verb("continue", &json!({ "entropy_base64": "", "realtime_ns": 1 })).0, 400);
    // Told twice, as where an answer got lost: nothing runs before it is thawed.
    for _ in 0..2 {
        let (status, answer) = agent.verb("continue", &continuation);
        assert_eq!((status, answer), (200, json!({ "steps": [] })), "no machine of its own, so no steps");
        assert_eq!(agent.health()["frozen"], true);
    }
    assert_eq!(agent.verb("thaw", &json!({})).0, 200);
    assert_eq!(agent.eval("random.random() == a, calls")["result"], "(True, [])");
    assert_eq!(agent.health()["identity"], "child");
}

#[test]
fn frozen_then_someone_else() {
    let Some(agent) = Agent::with_cgroups() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    agent.eval("import random\nrandom.seed(1)\na = random.random()\nrandom.seed(1)");
    let mut ticker =
        agent.start_process(&["sh", "-c", &format!("while :; do echo >> {path}; done")], json!({}));
    ticker.pid();
    let length = || std::fs::metadata(file.path()).unwrap().len();
    until("it ticks", || length() > 0);
    let (status, frozen) = agent.verb("freeze", &json!({}));
    assert_eq!(status, 200, "{frozen}");
    assert_eq!(agent.verb("freeze", &json!({})).0, 200);
    let stands = length();
    assert_eq!(agent.health()["frozen"], true);
    for (verb, body) in [
        ("exec", json!({"args": ["true"], "timeout_ms": 0, "max_output": 1})),
        ("eval", json!({"code": "1", "timeout_ms": 0})),
    ] {
        let (status, refusal) = agent.verb(verb, &body);
        assert_eq!((status, refusal["code"].as_str()), (409, Some("frozen")));
    }
    assert_eq!(length(), stands);
    let (status, answer) = agent.verb("identity", &common_identity("child", json!({})));
    assert_eq!(status, 200, "{answer}");
    until("it ticks again", || length() > stands);
    assert_eq!(agent.eval("random.random() == a")["result"], "False");
    assert_eq!(agent.verb("freeze", &json!({})).0, 200);
    assert_eq!(agent.verb("thaw", &json!({})), (200, json!({})));
    assert_eq!(agent.eval("1")["result"], "1");
}

#[test]
fn a_fork_in_the_middle_of_a_run_reseeds_before_the_next_instruction() {
    let Some(agent) = Agent::with_cgroups() else { return };
    let mark = tempfile::NamedTempFile::new().unwrap();
    agent.eval("import random, os, time, forkd\ncalls = []\nforkd.after_fork(lambda: calls.append(1))");
    let code = format!(
        "random.seed(1); a = random.random(); random.seed(1)\nopen('{}', 'w').write('x')\n\
         while not calls: time.sleep(0.01)\nrandom.random() == a, calls",
        mark.path().display()
    );
    std::thread::scope(|scope| {
        let run = scope.spawn(|| agent.eval(&code));
        until("it runs", || std::fs::metadata(mark.path()).unwrap().len() == 1);
        assert_eq!(agent.verb("freeze", &json!({})).0, 200);
        let (status, answer) = agent.verb("identity", &common_identity("child", json!({})));
        assert_eq!(status, 200, "{answer}");
        assert_eq!(run.join().unwrap()["result"], "(False, [1])");
    });
}
