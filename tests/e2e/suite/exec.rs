//! Commands in sandboxes.

use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_protocol::rest::ExecResponse;
use serde_json::{Value, json};

use crate::support::{
    Child, Children, at_soak, bare, becomes, each, forkd, forkd_fed, post, post_in_a_crowd, together,
};

/// As `sha256sum` says it.
fn sha256(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn rest(child: &Child, request: Value) -> ExecResponse {
    post(&child.path("exec"), request).with_status(200).parsed()
}

#[test]
fn many_megabytes_come_through_whole() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let size: usize = at_soak("bytes of output", 100_000_000, 8_000_000);
    let script = format!("head -c {size} /dev/urandom | tee /var/x | sha256sum; cat /var/x");
    let ran = children[0].exec(&["sh", "-c", &script]).ok();
    let cut = ran.stdout.iter().position(|&b| b == b'\n').unwrap();
    let (line, bytes) = ran.stdout.split_at(cut + 1);
    assert_eq!(bytes.len(), size);
    assert_eq!(String::from_utf8_lossy(line), format!("{}  -\n", sha256(bytes)));
    assert_eq!(children[0].sh("echo fine"), "fine");
}

#[test]
fn every_byte_arrives_on_the_stream_it_was_written_to() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let code = "import os\nfor b in range(256): os.write(1, bytes([b])); os.write(2, bytes([255 - b]))";
    let (up, down): (Vec<u8>, Vec<u8>) = ((0..=255).collect(), (0..=255).rev().collect());
    let answer = rest(&children[0], json!({ "args": ["python3", "-c", code], "timeout_secs": 120 }));
    assert_eq!(STANDARD.decode(answer.stdout_base64.unwrap()).unwrap(), up);
    assert_eq!(STANDARD.decode(answer.stderr_base64.unwrap()).unwrap(), down);
    let ran = children[0].exec(&["python3", "-c", code]).ok();
    assert_eq!(ran.stdout, up);
    assert_eq!(ran.stderr, String::from_utf8_lossy(&down));
}

#[test]
fn the_exit_code_is_the_commands() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    child.exec(&["true"]).ends_with(0);
    child.exec(&["sh", "-c", "exit 42"]).ends_with(42);
    child.exec(&["sh", "-c", "kill -KILL $$"]).ends_with(128 + 9);
    child.exec(&["sh", "-c", "kill -TERM $$"]).ends_with(128 + 15);
    let absent = child.exec(&["no-such-program"]).ends_with(125);
    assert!(absent.stderr.contains("no-such-program"), "{}", absent.stderr);
    let killed = rest(child, json!({ "args": ["sh", "-c", "echo before; kill -KILL $$"] }));
    assert_eq!(
        (killed.exit_code, killed.signal.as_deref(), killed.stdout.as_str()),
        (-1, Some("SIGKILL"), "before\n")
    );
}

#[test]
fn standard_input_passes_and_ends() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    let input: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let ran = forkd_fed(&["exec", &child.id, "--", "sha256sum"], &input).ok();
    assert_eq!(ran.text(), format!("{}  -\n", sha256(&input)));
    assert_eq!(child.exec(&["cat"]).ok().stdout, b"");
    let answer = rest(child, json!({ "args": ["cat"], "stdin_base64": STANDARD.encode("words") }));
    assert_eq!(answer.stdout, "words");
    assert_eq!(
        rest(child, json!({ "args": ["sh", "-c", "cat; test -t 0 || echo no terminal"] })).stdout,
        "no terminal\n"
    );
    assert_eq!(child.sh("cat <<END\nhere\nEND"), "here");
    // Input that nobody reads keeps nobody waiting.
    forkd_fed(&["exec", &child.id, "--", "true"], &input).ok();
}

#[test]
fn environment_folder_and_user_are_as_asked() {
    let _world = together();
    let children = Children::fork_with(bare(), 1, &["--env", "FROM_FORK=fork", "--env", "BOTH=fork"]);
    let child = &children[0];
    let script = "echo $FROM_FORK $BOTH $FROM_EXEC; pwd; id -un; touch /root/x 2>/dev/null || echo forbidden";
    let options = ["--env", "BOTH=exec", "--env", "FROM_EXEC=a b", "--cwd", "/var/tmp", "--user", "nobody"];
    let ran = forkd(&[&["exec", &child.id], &options[..], &["--", "sh", "-c", script]].concat()).ok();
    assert_eq!(ran.text(), "fork exec a b\n/var/tmp\nnobody\nforbidden\n");
    let asked =
        json!({ "args": ["sh", "-c", script], "env": { "BOTH": "rest" }, "cwd": "/tmp", "user": "root" });
    assert_eq!(rest(child, asked).stdout, "fork rest\n/tmp\nroot\n");
}

#[test]
fn a_timeout_ends_everything_also_what_left_the_session() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    let script = "setsid sleep 98765 & (setsid sleep 98765 &); echo started; sleep 98765";
    // Long enough that it had started: a busy computer is given more time.
    let cut = [2_u64, 10, 50].into_iter().find_map(|seconds| {
        let asked = json!({ "args": ["sh", "-c", script], "timeout_secs": seconds });
        Some(rest(child, asked)).filter(|answer| answer.stdout == "started\n")
    });
    assert!(cut.is_some_and(|answer| answer.timed_out));
    forkd(&["exec", &child.id, "--timeout", "2", "--", "sh", "-c", script]).ends_with(124);
    // The bracket keeps the search from finding itself.
    let left = || child.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | grep -ac 9876[5] || true");
    becomes(&"0".to_owned(), left);
}

#[test]
fn a_command_that_takes_no_notice_of_being_asked_is_ended() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let script = "trap '' TERM INT HUP; while :; do sleep 1; done";
    forkd(&["exec", &children[0].id, "--timeout", "1", "--", "sh", "-c", script]).ends_with(124);
}

#[test]
fn the_answer_to_exec_has_the_shape_that_clients_read() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let path = children[0].path("exec");
    let answer =
        post(&path, json!({ "args": ["sh", "-c", "echo out; echo err >&2; exit 3"], "timeout_secs": 30 }));
    let expected = json!({
        "stdout": "out\n", "stderr": "err\n", "exit_code": 3, "truncated": false, "timed_out": false
    });
    let mut answer = answer.with_status(200).json();
    assert!(answer["micros"].take().as_u64().is_some_and(|micros| micros > 0), "{answer}");
    answer.as_object_mut().unwrap().remove("micros");
    assert_eq!(answer, expected);
    let refused = post(&path, json!({ "args": [] })).with_status(400).json();
    assert!(refused["error"].is_string(), "{refused}");
    post(&path, json!({ "args": "ls" })).with_status(400);
    post(&path, json!({})).with_status(400);
    post("/v1/sandboxes/sb-0-0/exec", json!({ "args": ["true"] })).with_status(404);
}

#[test]
fn nothing_is_cut_without_saying_so() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    // Three bytes a sign, so that signs lie across every border between pieces.
    let code = "import sys; sys.stdout.write('€' * 400000)";
    let whole = rest(&children[0], json!({ "args": ["python3", "-c", code], "timeout_secs": 120 }));
    assert!(!whole.truncated && whole.stdout == "€".repeat(400_000), "{} bytes", whole.stdout.len());
}

#[test]
fn many_commands_at_once() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let count: usize = at_soak("commands at once", 200, 20);
    std::thread::scope(|scope| {
        for i in 0..count {
            let child = &children[0];
            scope.spawn(move || {
                let words = json!({ "args": ["sh", "-c", format!("echo {i}; exit {}", i % 100)], "timeout_secs": 300 });
                let answer: ExecResponse = post_in_a_crowd(&child.path("exec"), words).with_status(200).parsed();
                assert_eq!((answer.stdout, answer.exit_code), (format!("{i}\n"), (i % 100) as i32));
            });
        }
    });
    assert_eq!(children[0].sh("echo fine"), "fine");
}

#[test]
fn the_first_command_after_a_fork_needs_no_second_try() {
    let _world = together();
    let rounds: usize = at_soak("forks", 34, 3);
    for _ in 0..rounds {
        let children = Children::fork(bare(), 3);
        let answers = each(&children, |child| rest(child, json!({ "args": ["echo", "first"] })));
        assert!(answers.iter().all(|a| a.stdout == "first\n" && a.exit_code == 0), "{answers:?}");
    }
}

#[test]
fn orphans_are_reaped() {
    let _world = together();
    let children = Children::fork(bare(), 1);
    let child = &children[0];
    let batches: usize = at_soak("batches of 100 orphans", 500, 10);
    // A shell that ends without waiting leaves all that it started to PID 1.
    let batch = "i=0; while [ $i -lt 100 ]; do : & i=$((i + 1)); done";
    child.sh(&format!("n=0; while [ $n -lt {batches} ]; do sh -c '{batch}'; n=$((n + 1)); done"));
    let zombies = || child.sh("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true");
    becomes(&"0".to_owned(), zombies);
    assert_eq!(child.sh("echo fine"), "fine");
}
