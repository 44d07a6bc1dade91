//! Processes by the sandbox API.

mod common;

use std::io::Write;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use common::{Agent, envelope, read_head, runs, unique, until};
use serde_json::{Value, json};

fn select(pid: i64) -> Value {
    json!({ "process": { "pid": pid } })
}

#[test]
fn start_output_and_end() {
    let agent = Agent::plain();
    let told = agent.start_process(&["sh", "-c", "echo out; echo err >&2; exit 7"], json!({})).told();
    assert!(told.pid > 0 && told.error.is_none());
    assert_eq!((told.stdout.as_slice(), told.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    let end = told.end.unwrap();
    assert_eq!(
        end,
        json!({"exitCode": 7, "exited": true, "status": "exit status 7", "error": "exit status 7"})
    );
    let fine = agent.start_process(&["true"], json!({})).told().end.unwrap();
    assert_eq!(fine, json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
}

#[test]
fn much_output_is_exact() {
    let agent = Agent::plain();
    let script = "import os, hashlib\nh = hashlib.sha256()\nfor i in range(20):\n b = os.urandom(1 << 20)\n h.update(b)\n \
                  os.write(1, b) == len(b) or exit(1)\nos.write(2, h.hexdigest().encode())";
    let started = Instant::now();
    let told = agent.start_process(&["python3", "-c", script], json!({})).told();
    println!("20 MiB in {:?}", started.elapsed());
    assert_eq!(told.stdout.len(), 20 << 20);
    let mut hasher = std::process::Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    hasher.stdin.take().unwrap().write_all(&told.stdout).unwrap();
    let hash = hasher.wait_with_output().unwrap().stdout;
    assert_eq!(&hash[..64], &told.stderr[..64]);
}

#[test]
fn a_slow_reader_gets_everything_after_the_process_ended() {
    let agent = Agent::plain();
    let mut events = agent.start_process(&["sh", "-c", "head -c 200000 /dev/zero; echo end"], json!({}));
    let pid = events.pid();
    until("the process ended", || !std::path::Path::new(&format!("/proc/{pid}")).exists());
    let told = events.told();
    assert_eq!(told.stdout.len(), 200_004);
}

#[test]
fn the_process_goes_on_without_its_client_and_is_attached_to_again() {
    let agent = Agent::plain();
    let mut events = agent.start_process(
        &["sh", "-c", "echo one; read x; echo two $x; exit 5"],
        json!({"stdin": true, "tag": "t"}),
    );
    let pid = events.pid();
    assert_eq!(events.until("one\n").stdout, b"one\n");
    drop(events);
    let (_, list) = agent.unary("process.Process/List", &json!({}));
    assert_eq!(list["processes"][0]["pid"], pid);
    assert_eq!(list["processes"][0]["tag"], "t");
    assert_eq!(list["processes"][0]["config"]["cmd"], "sh");
    let mut input = select(pid);
    input["input"] = json!({"stdin": BASE64.encode("hello\n")});
    assert_eq!(agent.unary("process.Process/SendInput", &input), (200, json!({})));
    let told = agent.stream("process.Process/Connect", "", &json!({"process": {"tag": "t"}})).told();
    assert_eq!((told.pid, told.stdout.as_slice()), (pid, &b"two hello\n"[..]));
    assert_eq!(told.end.unwrap()["exitCode"], 5);
    let gone = agent.stream("process.Process/Connect", "", &select(pid)).told();
    let error = gone.error.unwrap();
    assert_eq!(
        (error["code"].as_str(), error["message"].as_str()),
        (Some("not_found"), Some(format!("process with pid {pid} not found").as_str()))
    );
}

#[test]
fn a_tied_process_ends_with_its_client() {
    let Some(agent) = Agent::with_cgroups() else { return };
    let nap = unique();
    let request =
        json!({"process": {"cmd": "sh", "args": ["-c", format!("setsid sleep {nap} & sleep {nap}")]}});
    let mut events = agent.stream("process.Process/Start", "x-forkd-tie: 1\r\n", &request);
    events.pid();
    until("it runs", || runs(&format!("sleep {nap}")));
    drop(events);
    until("it is gone", || !runs(&format!("sleep {nap}")));
}

#[test]
fn a_background_descendant_outlives_a_session() {
    let agent = Agent::plain();
    let nap = unique();
    let told = agent.start_process(&["sh", "-c", &format!("sleep {nap} & echo $!")], json!({})).told();
    assert_eq!(told.end.unwrap()["exitCode"], 0);
    assert!(runs(&format!("sleep {nap}")));
    let pid = String::from_utf8(told.stdout).unwrap();
    agent.exec(&["kill", pid.trim()]);
}

#[test]
fn time_limits() {
    let agent = Agent::plain();
    let request = json!({"process": {"cmd": "sh", "args": ["-c", "echo begun; sleep 60"]}});
    let started = Instant::now();
    let told = agent.stream("process.Process/Start", "Connect-Timeout-Ms: 500\r\n", &request).told();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(told.stdout, b"begun\n");
    assert_eq!(
        told.end.unwrap(),
        json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"})
    );
    assert_eq!(told.error.unwrap()["code"], "deadline_exceeded");
}

#[test]
fn keepalive_while_nothing_happens() {
    let agent = Agent::plain();
    let request = json!({"process": {"cmd": "sleep", "args": ["60"]}});
    let mut events = agent.stream("process.Process/Start", "Keepalive-Ping-Interval: 1\r\n", &request);
    let pid = events.pid();
    assert_eq!(events.next().1, json!({"event": {"keepalive": {}}}));
    let mut kill = select(pid);
    kill["signal"] = "SIGNAL_SIGKILL".into();
    assert_eq!(agent.unary("process.Process/SendSignal", &kill).0, 200);
    assert_eq!(events.told().end.unwrap()["status"], "signal: killed");
    let (status, error) = agent.unary("process.Process/SendSignal", &kill);
    assert_eq!((status, error["code"].as_str()), (404, Some("not_found")));
}

#[test]
fn dialogue_over_a_plain_pipe() {
    let agent = Agent::plain();
    let mut events = agent.start_process(&["cat"], json!({"stdin": true}));
    let pid = events.pid();
    for turn in ["one\n", "two\n"] {
        let mut input = select(pid);
        input["input"] = json!({"stdin": BASE64.encode(turn)});
        assert_eq!(agent.unary("process.Process/SendInput", &input).0, 200);
        assert_eq!(events.until(turn).stdout, turn.as_bytes());
    }
    let mut body = envelope(&json!({"start": select(pid)}));
    body.extend(envelope(&json!({"data": {"input": {"stdin": BASE64.encode("three\n")}}})));
    body.extend(envelope(&json!({"keepalive": {}})));
    let answer = agent.call(
        "POST",
        "/process.Process/StreamInput",
        "Content-Type: application/connect+json\r\n",
        &body,
    );
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"\0\0\0\0\x02{}\x02\0\0\0\x02{}"[..]));
    assert_eq!(events.until("three\n").stdout, b"three\n");
    assert_eq!(agent.unary("process.Process/CloseStdin", &select(pid)).0, 200);
    assert_eq!(events.told().end.unwrap()["exitCode"], 0);
}

#[test]
fn terminals() {
    let agent = Agent::plain();
    // The trap comes first: a window that changes before it is there changes unseen.
    let script = "trap 'stty size; exit 3' WINCH; test -t 0 && stty size; while :; do sleep 0.05; done";
    let mut events =
        agent.start_process(&["sh", "-c", script], json!({"pty": {"size": {"cols": 100, "rows": 30}}}));
    let pid = events.pid();
    events.until("30 100\r\n");
    let mut update = select(pid);
    update["pty"] = json!({"size": {"cols": 120, "rows": 40}});
    assert_eq!(agent.unary("process.Process/Update", &update).0, 200);
    let told = events.told();
    assert_eq!(String::from_utf8_lossy(&told.pty), "40 120\r\n");
    assert_eq!(told.end.unwrap()["exitCode"], 3);
}

#[test]
fn failures_of_streams_are_in_the_last_envelope() {
    let agent = Agent::plain();
    let start = |process: Value| {
        agent.stream("process.Process/Start", "", &json!({"process": process})).told().error.unwrap()
    };
    assert_eq!(start(json!({"cmd": "no-such"}))["code"], "invalid_argument");
    let cwd = start(json!({"cmd": "true", "cwd": "/no/such"}));
    assert_eq!(
        (cwd["code"].as_str(), cwd["message"].as_str()),
        (Some("invalid_argument"), Some("cwd '/no/such' does not exist"))
    );
    let request = json!({"process": {"cmd": "true"}});
    let user = format!("Authorization: Basic {}\r\n", BASE64.encode("ghost:"));
    let error = agent.stream("process.Process/Start", &user, &request).told().error.unwrap();
    assert_eq!(
        (error["code"].as_str(), error["message"].as_str()),
        (Some("unauthenticated"), Some("invalid username: 'ghost'"))
    );
}

#[test]
fn unknown_methods_and_codecs() {
    let agent = Agent::plain();
    assert_eq!(agent.unary("filesystem.Filesystem/Chmod", &json!({"path": "/"})).0, 501);
    assert_eq!(agent.unary("nothing.Here/At", &json!({})).1["code"], "unimplemented");
    let body = b"\x0a\x02";
    let answer = agent.call("POST", "/process.Process/List", "Content-Type: application/proto\r\n", body);
    assert_eq!(answer.status, 400);
    assert_eq!(agent.call("GET", "/health", "", b"").status, 204);
}

#[test]
fn headers_come_before_output() {
    let agent = Agent::plain();
    let body = envelope(&json!({"process": {"cmd": "sleep", "args": ["60"]}}));
    let stream =
        agent.send("POST", "/process.Process/Start", "Content-Type: application/connect+json\r\n", &body);
    let (status, _) = read_head(&mut std::io::BufReader::new(stream));
    assert_eq!(status, 200);
}
