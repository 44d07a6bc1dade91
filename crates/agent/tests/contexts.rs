//! Code contexts, as clients of E2B's code interpreter use them.
#![allow(clippy::unwrap_used, reason = "only tests call this")]

mod common;

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use common::{Agent, read_head, runs, unique, until};
use forkd_testkit::guard;
use serde_json::{Value, json};

/// Runs code to its end; all lines.
fn execute(agent: &Agent, request: &Value) -> Vec<Value> {
    let answer =
        agent.call("POST", "/execute", "Content-Type: application/json\r\n", request.to_string().as_bytes());
    let text = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 200, "{text}");
    assert!(text.ends_with('\n') && !text.contains("\n\n"), "{text:?}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.first().unwrap()["type"], "number_of_executions");
    assert_eq!(lines.last().unwrap()["type"], "end_of_execution");
    lines
}

fn python(agent: &Agent, code: &str) -> Vec<Value> {
    // As Python's client sends it.
    execute(agent, &json!({ "code": code, "context_id": null, "language": null, "env_vars": null }))
}

fn of_type<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

fn text(lines: &[Value], kind: &str) -> String {
    of_type(lines, kind).iter().map(|line| line["text"].as_str().unwrap()).collect()
}

fn main_result(lines: &[Value]) -> Value {
    of_type(lines, "result").into_iter().find(|line| line["is_main_result"] == true).unwrap().clone()
}

fn refusal(agent: &Agent, method: &str, path: &str, body: &Value) -> (u16, String) {
    let answer = agent.call(method, path, "Content-Type: application/json\r\n", body.to_string().as_bytes());
    (answer.status, String::from_utf8(answer.body).unwrap())
}

#[test]
fn python_prints_shows_fails_and_keeps_its_state() {
    let agent = Agent::plain();
    let lines = python(&agent, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 20\nx + 1");
    assert_eq!((text(&lines, "stdout"), text(&lines, "stderr")), ("out\n".into(), "err\n".into()));
    assert_eq!(main_result(&lines)["text"], "21");
    assert_eq!(lines[0]["execution_count"], 1);
    let lines = python(&agent, "display({'text/html': '<b>'}, raw=True)\nx * 2");
    assert_eq!(lines[0]["execution_count"], 2);
    let shown = of_type(&lines, "result");
    assert_eq!((&shown[0]["html"], &shown[0]["is_main_result"]), (&json!("<b>"), &json!(false)));
    assert_eq!(shown[1]["text"], "40");
    let lines = python(&agent, "print('before')\n1 / 0");
    let error = of_type(&lines, "error")[0];
    assert_eq!((&error["name"], &error["value"]), (&json!("ZeroDivisionError"), &json!("division by zero")));
    assert!(error["traceback"].as_str().unwrap().contains("1 / 0"));
    assert_eq!(text(&lines, "stdout"), "before\n");
    // The warm interpreter is the same one.
    assert_eq!(agent.eval("x")["result"], "20");
}

#[test]
fn output_comes_as_it_is_made() {
    let agent = Agent::plain();
    python(&agent, "1");
    let body = json!({ "code": "import time\nprint('first', flush=True)\ntime.sleep(3600)" }).to_string();
    let mut reader = BufReader::new(agent.send("POST", "/execute", "", body.as_bytes()));
    read_head(&mut reader);
    let mut line = String::new();
    while !line.contains("first") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "ended before it was told");
    }
    // Who goes away ends the run, and the next one begins.
    drop(reader);
    let began = Instant::now();
    assert_eq!(main_result(&python(&agent, "'next'"))["text"], "next");
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn much_output_is_whole() {
    let agent = Agent::plain();
    let lines = python(&agent, "for n in range(20000): print('ä€😀' * 20, n)");
    let expected: String = (0..20000).map(|n| format!("{} {n}\n", "ä€😀".repeat(20))).collect();
    assert!(text(&lines, "stdout") == expected);
}

#[test]
fn variables_are_those_of_one_run() {
    let agent = Agent::plain();
    let code = "import os\nos.environ.get('RUN_ONLY')";
    let lines = execute(&agent, &json!({ "code": code, "env_vars": { "RUN_ONLY": "1" } }));
    assert_eq!(main_result(&lines)["text"], "1");
    assert!(of_type(&python(&agent, code), "result").is_empty());
}

#[test]
fn contexts_are_made_listed_begun_anew_and_removed() {
    let agent = Agent::plain();
    let call = |method: &str, path: &str, body: &Value| {
        let answer =
            agent.call(method, path, "Content-Type: application/json\r\n", body.to_string().as_bytes());
        (answer.status, serde_json::from_slice::<Value>(&answer.body).unwrap_or_default())
    };
    assert_eq!(call("GET", "/contexts", &json!(null)), (200, json!([])));
    let (status, made) = call("POST", "/contexts", &json!({ "language": "python", "cwd": "/tmp" }));
    assert_eq!((status, &made["language"], &made["cwd"]), (200, &json!("python"), &json!("/tmp")));
    let id = made["id"].as_str().unwrap();
    let run = |code: &str| execute(&agent, &json!({ "code": code, "context_id": id }));
    assert_eq!(main_result(&run("import os\ny = 1\nos.getcwd()"))["text"], "/tmp");
    python(&agent, "y = 2");
    assert_eq!(main_result(&run("y"))["text"], "1");
    assert_eq!(call("GET", "/contexts", &json!(null)).1.as_array().unwrap().len(), 2);
    assert_eq!(call("POST", &format!("/contexts/{id}/restart"), &json!(null)).0, 204);
    assert_eq!(of_type(&run("y"), "error")[0]["name"], "NameError");
    assert_eq!(call("DELETE", &format!("/contexts/{id}"), &json!(null)).0, 204);
    assert_eq!(
        refusal(&agent, "POST", "/execute", &json!({ "code": "1", "context_id": id })),
        (404, format!("Context {id} not found"))
    );
    assert_eq!(refusal(&agent, "DELETE", &format!("/contexts/{id}"), &json!(null)).0, 404);
}

#[test]
fn impossible_calls_are_refused_with_a_reason() {
    let agent = Agent::plain();
    let both = json!({ "code": "1", "context_id": "x", "language": "python" });
    assert_eq!(refusal(&agent, "POST", "/execute", &both).0, 400);
    assert_eq!(refusal(&agent, "POST", "/execute", &json!({ "code": "1", "language": "cobol" })).0, 400);
    assert_eq!(refusal(&agent, "POST", "/execute", &json!({})).0, 400);
    assert_eq!(refusal(&agent, "POST", "/contexts", &json!({ "cwd": "/no/such" })).0, 400);
    assert_eq!(refusal(&agent, "POST", "/contexts", &json!({ "language": "r" })).0, 400);
    assert_eq!(refusal(&agent, "PUT", "/contexts/x/y/z", &json!({})).0, 404);
}

#[test]
fn a_shell_keeps_its_state() {
    let agent = Agent::plain();
    let run = |code: &str| execute(&agent, &json!({ "code": code, "language": "bash" }));
    let lines = run("cd /usr; x='a b'; echo \"$x\"; echo err >&2; f() { echo in f; }");
    assert_eq!((text(&lines, "stdout"), text(&lines, "stderr")), ("a b\n".into(), "err\n".into()));
    assert_eq!(text(&run("pwd; f; echo $x"), "stdout"), "/usr\nin f\na b\n");
    let error = run("false");
    assert_eq!(
        (&of_type(&error, "error")[0]["name"], &of_type(&error, "error")[0]["value"]),
        (&json!("ExitCode"), &json!("1"))
    );
    let env =
        json!({ "code": "echo $ONLY $x; cat", "language": "bash", "env_vars": { "ONLY": "1", "x": "2" } });
    assert_eq!(text(&execute(&agent, &env), "stdout"), "1 2\n");
    assert_eq!(text(&run("echo [$ONLY] $x"), "stdout"), "[] a b\n");
    // What ends the shell ends its state, not the context.
    assert_eq!(of_type(&run("exit 3"), "error")[0]["name"], "InterpreterEnded");
    assert_eq!(text(&run("echo [$x]"), "stdout"), "[]\n");
}

#[test]
fn node_keeps_its_state_and_awaits() {
    let node = std::process::Command::new("node").arg("--version").output();
    if !guard::met("node", node.map(drop).map_err(|e| format!("node: {e}"))) {
        return;
    }
    let agent = Agent::plain();
    let run = |code: &str| execute(&agent, &json!({ "code": code, "language": "js" }));
    let lines = run("const a = 20; console.log('out'); console.error('err'); a + 1");
    assert_eq!((text(&lines, "stdout"), text(&lines, "stderr")), ("out\n".into(), "err\n".into()));
    assert_eq!(main_result(&lines)["text"], "21");
    assert_eq!(main_result(&run("({ a, b: [1] })"))["json"], json!({ "a": 20, "b": [1] }));
    assert_eq!(
        main_result(&run("await new Promise((done) => setTimeout(() => done('later'), 5))"))["text"],
        "later"
    );
    let error = run("null.x");
    assert_eq!(of_type(&error, "error")[0]["name"], "TypeError");
    let shown = run("display([1]); require('path').basename('/a/b')");
    assert_eq!(of_type(&shown, "result")[0]["json"], json!([1]));
    assert_eq!(main_result(&shown)["text"], "b");
    let env = json!({ "code": "process.env.ONLY", "language": "js", "env_vars": { "ONLY": "1" } });
    assert_eq!(main_result(&execute(&agent, &env))["text"], "1");
    assert!(of_type(&run("process.env.ONLY"), "result").is_empty());
}

#[test]
fn a_context_that_is_removed_leaves_no_process() {
    let agent = Agent::plain();
    let mark = 1_000_000 + unique() % 1_000_000;
    let body = json!({ "code": format!("sleep {mark}"), "language": "bash" }).to_string();
    let mut reader = BufReader::new(agent.send("POST", "/execute", "", body.as_bytes()));
    read_head(&mut reader);
    until("it runs", || runs(&format!("sleep {mark}")));
    assert_eq!(agent.call("DELETE", "/contexts/default-bash", "", b"").status, 204);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut reader, &mut rest).unwrap();
    assert!(rest.contains("InterpreterEnded"), "{rest}");
}
