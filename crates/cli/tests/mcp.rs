//! `forkd mcp` as agents use it: line by line over standard input and output, and over HTTP.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use serde_json::{Value, json};

const TOKEN: &str = "9f2c61d07be34a58c1aa0e7d6b5f4e38";

/// A controller that plays its part.
struct Controller {
    url: String,
    _runtime: tokio::runtime::Runtime,
}

impl Controller {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let router = Router::new()
            .route("/v1/sandboxes", get(list).post(create))
            .route("/v1/sandboxes/{id}", delete(kill))
            .route("/v1/sandboxes/{id}/exec", post(exec))
            .route("/v1/sandboxes/{id}/agent/files", get(endless));
        let url = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move { axum::serve(listener, router).await });
            url
        });
        Self { url, _runtime: runtime }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forkd"));
        command.arg("mcp").args(args).env("FORKD_URL", &self.url).env_remove("FORKD_TOKEN");
        command
    }
}

fn sandbox(id: &str) -> Value {
    json!({
        "id": id, "snapshot_tag": "py", "netns": null, "guest_addr": "", "created_at_unix": 1, "pid": 7,
        "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null, "branch_count": 0,
        "state": "running", "ended": null, "timing": { "started_us": 1, "restored_us": 2, "answered_us": 3 }
    })
}

async fn list() -> impl IntoResponse {
    axum::Json(json!([sandbox("sb-1"), sandbox("sb-2")]))
}

async fn create(axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    if request["snapshot_tag"] == "none" {
        let body = json!({ "error": "there is no snapshot \"none\"", "code": "not_found" });
        return (StatusCode::NOT_FOUND, axum::Json(body));
    }
    (StatusCode::CREATED, axum::Json(json!([sandbox("sb-3")])))
}

async fn kill(Path(id): Path<String>) -> impl IntoResponse {
    if id == "sb-1" { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }
}

/// Ends what it is given to look for with the text that it is asked for.
async fn exec(axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    let told =
        request["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
    axum::Json(
        json!({ "stdout": told, "stderr": "", "exit_code": 3, "truncated": false, "timed_out": false }),
    )
}

async fn endless() -> impl IntoResponse {
    axum::body::Body::from_stream(futures::stream::repeat_with(|| Ok::<_, std::io::Error>("ä".repeat(512))))
}

/// The command, and a conversation with it.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    asked: u64,
}

impl Session {
    fn start(controller: &Controller) -> Self {
        let mut command = controller.command(&[]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, input, output, asked: 0 }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn greet(&mut self) -> Value {
        let answer = self.ask("initialize", &initialize());
        self.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        answer
    }

    fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        self.ask("tools/call", &json!({ "name": tool, "arguments": arguments }))["result"].take()
    }
}

fn initialize() -> Value {
    let client = json!({ "name": "t", "version": "1" });
    json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client })
}

/// What a request of the era without handshakes carries.
fn envelope() -> Value {
    json!({ "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" },
    } })
}

#[test]
fn the_tools_are_those_of_the_published_server_and_more() {
    let controller = Controller::start();
    let mut session = Session::start(&controller);
    let hello = session.greet();
    assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(hello["result"]["serverInfo"]["name"], "forkd");
    let answer = session.ask("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    for wanted in [
        "list_snapshots",
        "create_snapshot",
        "spawn_sandboxes",
        "list_sandboxes",
        "get_sandbox",
        "branch_sandbox",
        "exec_command",
        "eval_code",
        "ping_sandbox",
        "wait_for_text",
        "kill_sandbox",
        "read_file",
        "write_file",
        "list_files",
        "pause_sandbox",
        "resume_sandbox",
        "fork_sandbox",
        "snapshot_info",
        "delete_snapshot",
    ] {
        assert!(names.contains(&wanted), "{wanted} of {names:?}");
    }
    for tool in tools {
        let all = ["description", "inputSchema", "outputSchema", "annotations"];
        let lacks: Vec<_> = all.iter().filter(|name| tool[**name].is_null()).collect();
        assert!(lacks.is_empty() || lacks == [&"annotations"], "{tool}");
    }
    // Ends with its input.
    session.input = None;
    assert!(session.child.wait().unwrap().success());
}

#[test]
fn objects_lists_and_failures_have_their_shapes() {
    let controller = Controller::start();
    let mut session = Session::start(&controller);
    session.greet();
    let listed = session.call("list_sandboxes", &json!({}));
    assert_eq!(listed["content"].as_array().unwrap().len(), 2);
    assert_eq!(listed["structuredContent"]["result"][1]["id"], "sb-2");
    let spawned = session.call("spawn_sandboxes", &json!({ "snapshot_tag": "py", "prewarm": false }));
    assert_eq!(spawned["structuredContent"]["result"][0]["id"], "sb-3");
    let ran = session.call("exec_command", &json!({ "sandbox_id": "sb-1", "args": ["a", "b"] }));
    assert_eq!(
        (&ran["structuredContent"]["stdout"], &ran["structuredContent"]["exit_code"]),
        (&json!("a b"), &json!(3))
    );
    assert!(ran["content"][0]["text"].as_str().unwrap().contains("\n  \"exit_code\": 3"), "{ran}");
    assert_eq!(
        session.call("kill_sandbox", &json!({ "sandbox_id": "sb-1" }))["structuredContent"]["killed"],
        true
    );
    let marker = json!({ "sandbox_id": "sb-1", "path": "/log", "marker": "/log", "timeout_secs": 1.5 });
    assert_eq!(session.call("wait_for_text", &marker)["structuredContent"]["found"], true);
    let marker = json!({ "sandbox_id": "sb-1", "path": "/log", "marker": "no", "timeout_secs": 0 });
    assert_eq!(session.call("wait_for_text", &marker)["structuredContent"]["found"], false);
    let file = session.call("read_file", &json!({ "sandbox_id": "sb-1", "path": "/dev/zero" }));
    let content = file["structuredContent"]["content"].as_str().unwrap();
    assert!(content.len() == 48 << 10 && file["structuredContent"]["truncated"] == true);
    for (tool, arguments, words) in [
        ("spawn_sandboxes", json!({ "snapshot_tag": "none" }), "there is no snapshot"),
        ("exec_command", json!({ "sandbox_id": "sb-1" }), "args"),
        ("branch_sandbox", json!({ "sandbox_id": "sb-1", "mode": "half" }), "full, diff or live"),
        (
            "write_file",
            json!({ "sandbox_id": "sb-1", "path": "/x", "content": "?", "base64": true }),
            "no base64",
        ),
    ] {
        let failed = session.call(tool, &arguments);
        let text = failed["content"][0]["text"].as_str().unwrap();
        assert!(
            failed["isError"] == true && text.starts_with(&format!("Error executing tool {tool}: ")),
            "{text}"
        );
        assert!(text.contains(words), "{text}");
    }
    let unknown = session.ask("tools/call", &json!({ "name": "nothing", "arguments": {} }));
    assert_eq!(unknown["error"]["code"], -32602);
}

#[test]
fn the_era_without_handshakes_is_served_as_well() {
    let controller = Controller::start();
    let mut session = Session::start(&controller);
    let found = session.ask("server/discover", &envelope());
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")), "{found}");
    let mut params = envelope();
    params["name"] = "list_sandboxes".into();
    let answer = session.ask("tools/call", &params);
    assert_eq!(answer["result"]["resultType"], "complete");
    assert_eq!(answer["result"]["structuredContent"]["result"][0]["id"], "sb-1");
}

/// Status and body of one request over a connection of its own.
fn http(address: &str, headers: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nAccept: application/json, text/event-stream\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn over_http_a_token_is_demanded_and_pages_are_kept_out() {
    let controller = Controller::start();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, TOKEN).unwrap();
    let file = file.to_str().unwrap();
    let refused = controller.command(&["--http", "0.0.0.0:0", "--token-file", file]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(!controller.command(&["--http", "127.0.0.1:0"]).output().unwrap().status.success());

    let mut command = controller.command(&["--http", "127.0.0.1:0", "--token-file", file]);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.trim().split("http://").nth(1).unwrap().trim_end_matches("/mcp").to_owned();
    let ask = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize() });
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    assert_eq!(http(&address, "", &ask).0, 401);
    assert_eq!(http(&address, "Authorization: Bearer no\r\n", &ask).0, 401);
    assert_eq!(http(&address, &format!("{bearer}Origin: http://evil.example\r\n"), &ask).0, 403);
    let (status, body) = http(&address, &bearer, &ask);
    assert_eq!(status, 200, "{body}");
    assert!(body.contains("\"name\":\"forkd\""), "{body}");
    let call =
        json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": { "name": "list_sandboxes" } });
    let (status, body) = http(&address, &format!("{bearer}MCP-Protocol-Version: 2025-11-25\r\n"), &call);
    assert!(status == 200 && body.contains("sb-2"), "{status} {body}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert!(child.wait().unwrap().success());
}
