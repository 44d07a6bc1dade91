//! Commands run to their end.

mod common;

use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use common::{Agent, runs, unique, until};
use serde_json::json;

#[test]
fn every_byte_value_comes_through_both_ways() {
    let agent = Agent::plain();
    let bytes: Vec<u8> = (0..=255).cycle().take(1024 * 1024 + 1).collect();
    let ran = agent.exec_with(json!({
        "args": ["sh", "-c", "tee /dev/stderr"], "stdin_base64": BASE64.encode(&bytes),
        "timeout_ms": 60_000, "max_output": 8 << 20,
    }));
    assert!(ran.stdout == bytes && ran.stderr == bytes);
    assert_eq!(ran.value["truncated"], false);
}

#[test]
fn characters_across_every_boundary() {
    let agent = Agent::plain();
    let ran = agent.exec(&["python3", "-c", "import sys; sys.stdout.write('x' + 'ä€😀' * 200000)"]);
    assert_eq!(ran.text(), format!("x{}", "ä€😀".repeat(200_000)));
}

#[test]
fn exit_codes_signals_and_separate_streams() {
    let agent = Agent::plain();
    let ran = agent.exec(&["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!((ran.code(), ran.text().as_str(), ran.stderr.as_slice()), (7, "out\n", &b"err\n"[..]));
    let killed = agent.exec(&["sh", "-c", "kill -TERM $$"]);
    assert_eq!((killed.code(), killed.value["signal"].as_str()), (-1, Some("SIGTERM")));
}

#[test]
fn output_beyond_the_limit_is_dropped_and_said() {
    let agent = Agent::plain();
    let ran = agent.exec_with(json!({
        "args": ["sh", "-c", "head -c 5000000 /dev/zero; echo done >&2"], "timeout_ms": 60_000, "max_output": 1000,
    }));
    assert_eq!((ran.stdout.len(), ran.stderr.as_slice(), ran.code()), (1000, &b"done\n"[..], 0));
    assert_eq!(ran.value["truncated"], true);
}

#[test]
fn without_input_the_end_comes_at_once() {
    let agent = Agent::plain();
    assert_eq!(agent.exec(&["cat"]).text(), "");
    assert_eq!(agent.exec(&["sh", "-c", "test -t 0 || echo plain"]).text(), "plain\n");
    // A process may end without reading what it is given.
    let unread = json!({ "args": ["true"], "stdin_base64": BASE64.encode(vec![0; 1 << 20]), "timeout_ms": 0, "max_output": 1 });
    assert_eq!(agent.exec_with(unread).code(), 0);
}

#[test]
fn environment_directory_and_user() {
    let agent = Agent::plain();
    let ran = agent.exec_with(json!({
        "args": ["sh", "-c", "echo $HOME $USER $A; pwd; id -u; ls /proc/self/fd | wc -l"],
        "env": {"A": "b c"}, "cwd": "/usr", "user": "daemon", "timeout_ms": 0, "max_output": 10_000,
    }));
    let home = agent.exec(&["sh", "-c", "grep ^daemon: /etc/passwd | cut -d: -f6"]).text();
    assert_eq!(ran.text(), format!("{} daemon b c\n/usr\n1\n4\n", home.trim()));
    let (status, refusal) =
        agent.verb("exec", &json!({"args": ["true"], "cwd": "/no/such", "timeout_ms": 0, "max_output": 1}));
    assert_eq!((status, refusal["code"].as_str()), (400, Some("bad_cwd")));
    let (status, refusal) = agent
        .verb("exec", &json!({"args": ["true"], "user": "nobody-here", "timeout_ms": 0, "max_output": 1}));
    assert_eq!((status, refusal["code"].as_str()), (400, Some("unknown_user")));
}

#[test]
fn commands_that_cannot_be_run() {
    let agent = Agent::plain();
    for (program, code) in
        [("no-such-program", "command_not_found"), ("/etc/passwd", "not_executable"), ("", "bad_request")]
    {
        let (_, refusal) = agent.verb("exec", &json!({"args": [program], "timeout_ms": 0, "max_output": 1}));
        assert_eq!(refusal["code"], code, "{refusal}");
    }
    let (status, _) = agent.verb("exec", &json!({"args": "sh"}));
    assert_eq!(status, 400);
}

#[test]
fn signals_are_as_a_fresh_process_expects_them() {
    let agent = Agent::plain();
    let ran = agent.exec(&["sh", "-c", "grep -E 'Sig(Blk|Ign)' /proc/self/status"]);
    assert_eq!(ran.text(), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    assert_eq!(agent.exec(&["sh", "-c", "yes | head -1"]).text(), "y\n");
}

fn timeout_leaves_nothing(agent: &Agent) {
    let (a, b) = (unique(), unique());
    let started = Instant::now();
    let ran = agent.exec_with(json!({
        "args": ["sh", "-c", format!("echo begun; setsid sleep {a} & sleep {b}")], "timeout_ms": 700, "max_output": 1000,
    }));
    assert!(started.elapsed() < Duration::from_secs(3));
    assert_eq!(ran.value["timed_out"], true);
    assert_eq!((ran.value["signal"].as_str(), ran.text().as_str()), (Some("SIGKILL"), "begun\n"));
    until("no process is left", || !runs(&format!("sleep {a}")) && !runs(&format!("sleep {b}")));
}

#[test]
fn timeout_kills_the_whole_tree_by_search() {
    timeout_leaves_nothing(&Agent::plain());
}

#[test]
fn timeout_kills_the_whole_tree_by_cgroup() {
    let Some(agent) = Agent::with_cgroups() else { return };
    timeout_leaves_nothing(&agent);
    // A double fork hides from sessions and parents, not from a cgroup.
    let hidden = unique();
    let ran = agent.exec_with(json!({
        "args": ["sh", "-c", format!("(setsid sh -c 'sleep {hidden} & exit' &); sleep 60")],
        "timeout_ms": 700, "max_output": 1000,
    }));
    assert_eq!(ran.value["timed_out"], true);
    until("the hidden process ends", || !runs(&format!("sleep {hidden}")));
    let workload = agent.cgroup().join("workload");
    until("its cgroup is removed", || {
        std::fs::read_dir(&workload).unwrap().flatten().all(|entry| !entry.path().is_dir())
    });
}

#[test]
fn what_is_left_in_the_background_neither_delays_the_answer_nor_outlives_it() {
    let Some(agent) = Agent::with_cgroups() else { return };
    let left = unique();
    let started = Instant::now();
    let ran = agent.exec(&["sh", "-c", &format!("sleep {left} & echo started")]);
    assert_eq!((ran.text().as_str(), ran.code()), ("started\n", 0));
    assert!(started.elapsed() < Duration::from_secs(5));
    until("it ends with the command", || !runs(&format!("sleep {left}")));
}

#[test]
fn a_caller_that_leaves_takes_its_command_along() {
    let Some(agent) = Agent::with_cgroups() else { return };
    let nap = unique();
    let body = json!({"args": ["sleep", nap.to_string()], "timeout_ms": 0, "max_output": 1}).to_string();
    let stream = agent.send("POST", "/forkd/v1/exec", "", body.as_bytes());
    until("it runs", || runs(&format!("sleep {nap}")));
    drop(stream);
    until("it is gone", || !runs(&format!("sleep {nap}")));
}

#[test]
fn many_at_once() {
    let agent = Agent::plain();
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..200)
            .map(|i| {
                scope.spawn({
                    let agent = &agent;
                    move || (i, agent.exec(&["sh", "-c", &format!("echo {i}; head -c 100000 /dev/zero >&2")]))
                })
            })
            .collect();
        for run in runs {
            let (i, ran) = run.join().unwrap();
            assert_eq!((ran.text(), ran.stderr.len(), ran.code()), (format!("{i}\n"), 100_000, 0));
        }
    });
}

#[test]
fn orphans_are_collected() {
    let agent = Agent::plain();
    agent.exec(&["sh", "-c", "i=0; while [ $i -lt 2000 ]; do (sh -c 'exit 3' & exit) ; i=$((i+1)); done"]);
    until("no zombie is left", || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", agent.pid())).unwrap();
        children.trim().is_empty()
    });
    assert_eq!(agent.exec(&["echo", "fine"]).text(), "fine\n");
}
