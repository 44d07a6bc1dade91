//! The command as people run it, against a controller that plays its part: what goes over the wire, what is
//! printed where, and how it ends.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test ends at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{delete, get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// What the controller saw, and where input for a running command goes.
#[derive(Default)]
struct Seen {
    killed: Mutex<Vec<String>>,
    started: Mutex<Vec<(Value, HeaderMap)>>,
    left: Mutex<bool>,
    input: Mutex<Option<mpsc::UnboundedSender<Bytes>>>,
}

type Shared = Arc<Seen>;

struct Controller {
    url: String,
    seen: Shared,
    _runtime: tokio::runtime::Runtime,
}

impl Controller {
    fn start() -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let seen = Shared::default();
        let agent = "/v1/sandboxes/{id}/agent/process.Process";
        let router = Router::new()
            .route("/v1/sandboxes", get(list).post(fork))
            .route("/v1/sandboxes/{id}", delete(kill))
            .route("/v1/sandboxes/{id}/pause", post(|id| turned(id, "paused")))
            .route("/v1/sandboxes/{id}/resume", post(|id| turned(id, "running")))
            .route("/v1/sandboxes/{id}/branch", post(branch))
            .route("/v1/sandboxes/{id}/eval", post(eval))
            .route("/v1/sandboxes/{id}/exec", post(exec))
            .route("/v1/sandboxes/{id}/stats", get(stats))
            .route("/v1/snapshots", get(snapshots).post(snapshot))
            .route("/v1/snapshots/{tag}", delete(remove))
            .route("/v1/snapshots/{tag}/info", get(detail))
            .route("/v1/snapshots/{tag}/compact", post(compact))
            .route("/v1/snapshots/{tag}/refresh", post(refresh))
            .route("/v1/gc", post(gc))
            .route("/v1/verify", post(verify))
            .route("/v1/images", get(|| async { axum::Json(json!([image()])) }))
            .route("/v1/images/py", get(|| async { axum::Json(image()) }))
            .route("/v1/images/{name}", delete(remove))
            .route("/v1/kernels/{name}", delete(remove))
            .route(
                "/v1/kernels",
                get(|| async { axum::Json(json!([{"name":"k","created_at_unix":1,"hash":"h"}])) }),
            )
            .route(&format!("{agent}/Start"), post(start))
            .route(&format!("{agent}/StreamInput"), post(stream_input))
            .route(&format!("{agent}/CloseStdin"), post(close_stdin))
            .with_state(Arc::clone(&seen));
        let url = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move { axum::serve(listener, router).await });
            url
        });
        Self { url, seen, _runtime: runtime }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forkd"));
        command.args(args).env("FORKD_URL", &self.url).env_remove("FORKD_TOKEN").stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }
}

fn sandbox(id: &str) -> Value {
    json!({
        "id": id, "snapshot_tag": "py", "netns": null, "guest_addr": "", "created_at_unix": 1, "pid": 77,
        "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null, "branch_count": 0,
        "state": "running", "ended": null,
        "timing": { "started_us": 1, "restored_us": 2, "answered_us": 34_000 }
    })
}

async fn list() -> impl IntoResponse {
    axum::Json(json!([sandbox("sb-1"), sandbox("sb-2")]))
}

async fn fork(axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    if request["snapshot_tag"] == "broken" {
        let body = json!({ "error": "1 of 2 children failed", "code": "fork_failed", "failures": ["child 1: no memory"] });
        return (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body));
    }
    let children = (1..=request["n"].as_u64().unwrap()).map(|n| sandbox(&format!("sb-{n}")));
    (StatusCode::CREATED, axum::Json(children.collect()))
}

async fn kill(State(seen): State<Shared>, Path(id): Path<String>) -> impl IntoResponse {
    seen.killed.lock().unwrap().push(id);
    StatusCode::NO_CONTENT
}

async fn turned(Path(id): Path<String>, state: &'static str) -> axum::response::Response {
    if id == "sb-busy" {
        let body = json!({ "error": "sandbox sb-busy is starting, not running", "code": "not_running" });
        return (StatusCode::CONFLICT, axum::Json(body)).into_response();
    }
    let mut sandbox = sandbox(&id);
    sandbox["state"] = json!(state);
    axum::Json(sandbox).into_response()
}

async fn branch(Path(id): Path<String>, axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    let mut made = made(request["tag"].as_str().unwrap(), 7);
    made["branched_from"] = json!(id);
    made["status"] = if request["wait"] == false { json!("writing") } else { json!("ready") };
    (StatusCode::CREATED, axum::Json(made))
}

async fn refresh(
    Path(tag): Path<String>,
    headers: HeaderMap,
    axum::Json(request): axum::Json<Value>,
) -> impl IntoResponse {
    assert_eq!(headers[header::ACCEPT], "text/event-stream");
    let made = made(request["tag"].as_str().unwrap_or(&tag), 7);
    let text = format!("event: progress\ndata: booting\n\nevent: done\ndata: {made}\n\n");
    ([(header::CONTENT_TYPE, "text/event-stream")], text)
}

async fn eval(axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    let fails = request["code"] == "1/0";
    axum::Json(json!({
        "result": if fails { Value::Null } else { json!("[0.0]") }, "exit_code": i32::from(fails), "stdout": "said\n",
        "error": if fails { json!("ZeroDivisionError: division by zero") } else { Value::Null },
        "traceback": if fails { json!("Traceback\nZeroDivisionError") } else { Value::Null },
        "result_json": null, "stderr": "", "timed_out": false, "truncated": false, "micros": 5
    }))
}

async fn exec(axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    let stdout = request["args"].as_array().unwrap().len().to_string();
    let said = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
    let stderr = format!("{} {}", said("user"), said("stdin_base64"));
    axum::Json(
        json!({ "stdout": stdout, "stderr": stderr, "exit_code": 4, "truncated": false, "timed_out": false }),
    )
}

async fn stats() -> impl IntoResponse {
    axum::Json(
        json!({ "monitor_private_bytes": 1 << 20, "guest_private_bytes": 4 << 20, "guest_shared_bytes": 0 }),
    )
}

fn image() -> Value {
    json!({ "name": "py", "created_at_unix": 5, "size_bytes": 1, "physical_bytes": 1, "hash": "h", "origin": "o" })
}

fn made(tag: &str, created_at_unix: u64) -> Value {
    json!({
        "tag": tag, "dir": "/d", "created_at_unix": created_at_unix, "status": "ready", "bootable": true,
        "image": "py", "kernel": "k", "vcpus": 1, "memory_mib": 512, "memory_physical_bytes": 1 << 20,
        "memory_hash": "h", "timing": { "boot_ms": 1, "warm_ms": 2, "write_ms": 3 }
    })
}

/// The tag that `forkd run` gives the snapshot of an image of this content.
fn run_tag(content: &str) -> String {
    format!("img-py-{}", &blake3::hash(format!("py\n{content}").as_bytes()).to_hex()[..16])
}

/// One of what the image was before a rebuild, and one that somebody made under a similar tag.
async fn snapshots() -> impl IntoResponse {
    let (mut old, mut own) = (made(&run_tag("before"), 4), made("img-py-0123456789abcdef", 4));
    old["image_hash"] = json!("before");
    own["image_hash"] = json!("before");
    axum::Json(json!([made("base", 6), made("code-interpreter-v1", 6), made("img-py", 4), own, old]))
}

async fn detail(Path(tag): Path<String>) -> impl IntoResponse {
    let layer =
        |hash: &str| json!({ "hash": hash, "logical_bytes": 8192, "physical_bytes": 4096, "extents": 3 });
    axum::Json(json!({
        "tag": tag, "id": "its-hash", "dir": "/d", "created_at_unix": 1, "memory_logical_bytes": 512 << 20,
        "memory_physical_bytes": 1 << 20, "view_physical_bytes": 4096, "disk_logical_bytes": 1 << 30,
        "disk_physical_bytes": 0, "vmstate_bytes": 9000, "parent_tag": "base", "parent_content_hash": "p",
        "chain_depth": 2, "ancestors": ["base"], "dependents": ["leaf"], "image": "py", "image_hash": "i",
        "memory_layers": [layer("lower"), layer("upper")], "disk_layers": [layer("top")],
        "kernel": "k", "agent_protocol": 1
    }))
}

async fn compact(Path(tag): Path<String>, axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    assert_eq!(tag, "long");
    (StatusCode::CREATED, axum::Json(made(request["to"].as_str().unwrap(), 7)))
}

async fn gc(uri: axum::http::Uri) -> impl IntoResponse {
    let dry_run = uri.query() == Some("dry_run=true");
    let items = json!([{ "kind": "layer", "name": "left", "bytes": 4096 }]);
    axum::Json(json!({ "dry_run": dry_run, "items": items, "bytes": 4096 }))
}

async fn verify(axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    let damage =
        json!([{ "kind": "memory layer", "path": "/l/x", "error": "/l/x is damaged", "tags": ["a", "b"] }]);
    let sound = request["tag"] == "sound";
    let views = u32::from(request["rebuild_views"] == true);
    let damage = if sound { json!([]) } else { damage };
    axum::Json(json!({ "snapshots": 2, "files": 9, "views_rebuilt": views, "damage": damage }))
}

async fn remove(
    State(seen): State<Shared>,
    Path(tag): Path<String>,
    uri: axum::http::Uri,
) -> impl IntoResponse {
    if tag == "needed" && uri.query().is_none() && !seen.killed.lock().unwrap().contains(&"leaf".to_owned()) {
        let body = json!({ "error": "leaf descend from \"needed\"", "code": "has_dependents" });
        return (StatusCode::CONFLICT, axum::Json(body)).into_response();
    }
    if tag.starts_with("nope") {
        let body = json!({ "error": format!("there is no {tag:?}"), "code": "not_found" });
        return (StatusCode::NOT_FOUND, axum::Json(body)).into_response();
    }
    seen.killed.lock().unwrap().push(uri.query().map_or(tag.clone(), |query| format!("{tag}?{query}")));
    StatusCode::NO_CONTENT.into_response()
}

async fn snapshot(headers: HeaderMap, axum::Json(request): axum::Json<Value>) -> impl IntoResponse {
    assert_eq!(headers[header::ACCEPT], "text/event-stream");
    let end = if request["tag"] == "taken" {
        "event: error\ndata: {\"status\":409,\"error\":\"the tag is taken\",\"code\":\"tag_taken\"}\n\n"
            .to_owned()
    } else {
        let mut made = made(request["tag"].as_str().unwrap(), 7);
        made["vcpus"] = request["vcpus"].clone();
        format!("event: done\ndata: {made}\n\n")
    };
    let text = format!(": hi\n\nevent: progress\ndata: booting\n\n{end}");
    ([(header::CONTENT_TYPE, "text/event-stream")], text)
}

fn envelope(flags: u8, message: &Value) -> Vec<u8> {
    let text = message.to_string();
    let mut out = vec![flags];
    out.extend((text.len() as u32).to_be_bytes());
    out.extend(text.as_bytes());
    out
}

fn event(event: Value) -> Vec<u8> {
    envelope(0, &json!({ "event": event }))
}

fn output(stream: &str, bytes: &[u8]) -> Vec<u8> {
    event(json!({ "data": { stream: STANDARD.encode(bytes) } }))
}

fn ended(code: i32, status: &str) -> Vec<u8> {
    [
        event(json!({ "end": { "exitCode": code, "exited": code >= 0, "status": status } })),
        envelope(2, &json!({})),
    ]
    .concat()
}

/// Notes that its answer was dropped, whether or not it was read to its end.
struct Leaving(Shared);

impl Drop for Leaving {
    fn drop(&mut self) {
        *self.0.left.lock().unwrap() = true;
    }
}

/// What the output of `flood` consists of: every byte value, and no power of two in its period.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8 ^ (i / 251 % 256) as u8).collect()
}

const FLOOD: usize = 20_000_000;

async fn start(State(seen): State<Shared>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let request: Value = serde_json::from_slice(&body[5..]).unwrap();
    let command = request["process"]["cmd"].as_str().unwrap().to_owned();
    seen.started.lock().unwrap().push((request, headers));
    let mut pieces = vec![event(json!({ "start": { "pid": 9 } }))];
    let (sender, receiver) = mpsc::unbounded_channel();
    match command.as_str() {
        "mixed" => {
            let all: Vec<u8> = (0..=255).collect();
            pieces.extend([output("stdout", &all), output("stderr", b"err\xff"), ended(3, "exit status 3")]);
        }
        "flood" => {
            pieces.extend(pattern(FLOOD).chunks(32 << 10).map(|c| output("stdout", c)));
            pieces.push(ended(0, "exit status 0"));
        }
        "killed" => pieces.push(ended(-1, "signal: killed")),
        "late" => pieces.extend([
            event(json!({ "end": { "exitCode": -1, "status": "signal: killed" } })),
            envelope(2, &json!({ "error": { "code": "deadline_exceeded", "message": "late" } })),
        ]),
        "missing" => {
            let error = json!({ "error": { "code": "invalid_argument", "message": "no such program" } });
            pieces = vec![envelope(2, &error)];
        }
        "cut" => {}
        _ => *seen.input.lock().unwrap() = Some(sender),
    }
    let echo = futures::stream::unfold(receiver, |mut r| async move {
        let bytes = r.recv().await?;
        Some((if bytes.is_empty() { ended(0, "exit status 0") } else { output("stdout", &bytes) }, r))
    });
    let leaving = Leaving(Arc::clone(&seen));
    let stream = futures::stream::iter(pieces).chain(echo).map(move |piece| {
        let _ = &leaving;
        Ok::<_, std::io::Error>(piece)
    });
    ([(header::CONTENT_TYPE, "application/connect+json")], Body::from_stream(stream))
}

async fn stream_input(State(seen): State<Shared>, body: Body) -> impl IntoResponse {
    let (mut body, mut pending) = (body.into_data_stream(), Vec::new());
    while let Some(Ok(bytes)) = body.next().await {
        pending.extend(bytes);
        while pending.len() >= 5 {
            let length = u32::from_be_bytes(pending[1..5].try_into().unwrap()) as usize;
            if pending.len() < 5 + length {
                break;
            }
            let message: Value = serde_json::from_slice(&pending[5..5 + length]).unwrap();
            pending.drain(..5 + length);
            if let Some(data) = message["data"]["input"]["stdin"].as_str() {
                let input = seen.input.lock().unwrap().clone().expect("a command waits for input");
                input.send(STANDARD.decode(data).unwrap().into()).unwrap();
            }
        }
    }
    envelope(2, &json!({}))
}

async fn close_stdin(State(seen): State<Shared>) -> impl IntoResponse {
    // A command that waits for no input has none to close.
    if let Some(input) = seen.input.lock().unwrap().take() {
        input.send(Bytes::new()).unwrap();
    }
    axum::Json(json!({}))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn streams_stay_apart_and_exact_and_the_exit_code_is_the_commands() {
    let controller = Controller::start();
    let out = controller
        .run(&["exec", "sb-1", "--env", "A=b", "--user", "ann", "--cwd", "/srv", "--", "mixed", "-x"]);
    assert_eq!(out.status.code(), Some(3));
    assert_eq!(out.stdout, (0..=255).collect::<Vec<u8>>());
    assert_eq!(out.stderr, b"err\xff");
    let (request, headers) = controller.seen.started.lock().unwrap().remove(0);
    let process = json!({ "cmd": "mixed", "args": ["-x"], "envs": { "A": "b" }, "cwd": "/srv" });
    assert_eq!(request["process"], process);
    assert_eq!(headers["x-forkd-tie"], "1");
    assert_eq!(headers["x-agent-authorization"], format!("Basic {}", STANDARD.encode("ann:")));
    assert!(!headers.contains_key("connect-timeout-ms"));
}

#[test]
fn both_forms_of_exec_leave_the_user_to_the_image_and_pass_standard_input_on() {
    let controller = Controller::start();
    assert_eq!(controller.run(&["exec", "sb-1", "--", "mixed"]).status.code(), Some(3));
    let (request, headers) = controller.seen.started.lock().unwrap().remove(0);
    assert_eq!(request["stdin"], true);
    assert!(!headers.contains_key("x-agent-authorization"));
    assert_eq!(headers["x-forkd-default-user"], "root");

    let mut child = controller
        .command(&["--json", "exec", "sb-1", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"typed").unwrap();
    let out = child.wait_with_output().unwrap();
    let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(answer["stderr"], format!(" {}", STANDARD.encode("typed")));
}

#[test]
fn one_that_cannot_be_removed_does_not_keep_the_others() {
    let controller = Controller::start();
    for removal in [&["rmi"][..], &["image", "rm"], &["kernel", "rm"]] {
        let out = controller.run(&[removal, &["a", "nope", "b", "nope2"]].concat());
        assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
        assert_eq!(text(&out.stdout), "a\nb\n");
        for name in ["nope", "nope2"] {
            assert!(text(&out.stderr).contains(&format!("there is no {name:?}")), "{}", text(&out.stderr));
        }
        assert_eq!(std::mem::take(&mut *controller.seen.killed.lock().unwrap()), ["a", "b"]);
    }
}

#[test]
fn a_snapshot_that_others_descend_from_goes_only_on_purpose() {
    let controller = Controller::start();
    let out = controller.run(&["rmi", "needed"]);
    assert_eq!(out.status.code(), Some(4));
    assert!(text(&out.stderr).contains("leaf descend from"), "{}", text(&out.stderr));
    assert!(controller.run(&["rmi", "needed", "--cascade"]).status.success());
    assert!(controller.run(&["rmi", "--force", "needed"]).status.success());
    assert_eq!(controller.run(&["rmi", "--force", "--cascade", "needed"]).status.code(), Some(2));
    let out = controller.run(&["rmi", "needed", "nope", "leaf"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(3), "leaf\nneeded\n".into()));
    let gone = ["needed?cascade=true", "needed?force=true", "leaf", "needed"];
    assert_eq!(*controller.seen.killed.lock().unwrap(), gone);
}

#[test]
fn chains_are_shown_flattened_checked_and_cleaned_up_after() {
    let controller = Controller::start();
    let out = controller.run(&["snapshot-info", "long"]);
    let shown = text(&out.stdout);
    for expected in ["its-hash", "depth           2", "ancestors       base", "dependents      leaf", "upper"]
    {
        assert!(shown.contains(expected), "{shown}");
    }
    let out = controller.run(&["snapshot-info", "long", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["chain_depth"], 2);

    let out = controller.run(&["snapshot-compact", "--from", "long", "--to", "flat"]);
    assert!(text(&out.stdout).starts_with("flat: "), "{}", text(&out.stdout));

    let out = controller.run(&["gc", "--dry-run"]);
    assert!(text(&out.stdout).contains("would be freed"), "{}", text(&out.stdout));
    let out = controller.run(&["gc", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["dry_run"], false);

    let out = controller.run(&["verify"]);
    assert_eq!(out.status.code(), Some(8));
    assert!(text(&out.stdout).contains("damaged memory layer: /l/x is damaged (needed by a, b)"));
    let out = controller.run(&["verify", "sound", "--rebuild-views"]);
    assert!(
        out.status.success() && text(&out.stdout).contains("1 views made again"),
        "{}",
        text(&out.stdout)
    );

    let out = controller.run(&["tree"]);
    assert!(
        text(&out.stdout).contains("└── ") && text(&out.stdout).contains("sb-2"),
        "{}",
        text(&out.stdout)
    );
    let out = controller.run(&["tree", "--json"]);
    assert!(serde_json::from_slice::<Value>(&out.stdout).unwrap().is_array());
}

#[test]
fn much_output_comes_through_whole() {
    let controller = Controller::start();
    let out = controller.run(&["exec", "sb-1", "--", "flood"]);
    assert!(out.status.success());
    assert_eq!(out.stdout.len(), FLOOD);
    assert!(out.stdout == pattern(FLOOD));
}

#[test]
fn other_ends_have_their_own_exit_codes() {
    let controller = Controller::start();
    for (command, code, says) in
        [("killed", 137, ""), ("late", 124, ""), ("missing", 125, "no such program"), ("cut", 125, "sandbox")]
    {
        let out = controller.run(&["exec", "sb-1", "--timeout", "5", "--", command]);
        assert_eq!(out.status.code(), Some(code), "{command}");
        assert!(text(&out.stderr).contains(says), "{command}: {}", text(&out.stderr));
    }
    assert_eq!(controller.seen.started.lock().unwrap()[0].1["connect-timeout-ms"], "5000");
    assert_eq!(controller.run(&["exec", "../x", "--", "mixed"]).status.code(), Some(2));
}

#[test]
fn standard_input_is_passed_on_to_its_end() {
    let controller = Controller::start();
    let mut child = controller
        .command(&["exec", "sb-1", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = pattern(3_000_000);
    let (mut stdin, bytes) = (child.stdin.take().unwrap(), sent.clone());
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).unwrap());
    let mut got = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut got).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    assert!(got == sent);
}

#[test]
fn an_interrupted_exec_lets_go_of_its_command() {
    let controller = Controller::start();
    let mut child =
        controller.command(&["exec", "sb-1", "--", "wait"]).stdin(Stdio::piped()).spawn().unwrap();
    until(|| !controller.seen.started.lock().unwrap().is_empty());
    child.kill().unwrap();
    child.wait().unwrap();
    until(|| *controller.seen.left.lock().unwrap());
}

#[test]
fn evaluating_prints_the_value_or_the_traceback() {
    let controller = Controller::start();
    let out = controller.run(&["eval", "sb-1", "--", "numpy.zeros(1).tolist()"]);
    assert_eq!((text(&out.stdout).as_str(), out.status.code()), ("said\n[0.0]\n", Some(0)));
    let out = controller.run(&["eval", "sb-1", "--", "1/0"]);
    assert_eq!((text(&out.stderr).as_str(), out.status.code()), ("Traceback\nZeroDivisionError\n", Some(1)));
    let out = controller.run(&["--json", "eval", "sb-1", "--", "x"]);
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["result"], "[0.0]");
}

#[test]
fn forking_prints_a_table_or_the_apis_own_answer() {
    let controller = Controller::start();
    let out = controller.run(&["fork", "--tag", "py", "-n", "2"]);
    let table = text(&out.stdout);
    assert_eq!(table.lines().count(), 3, "{table}");
    assert!(table.starts_with("ID") && table.contains("sb-2") && table.contains("34 ms"), "{table}");
    let out = controller.run(&["fork", "--tag", "py", "-n", "2", "--json"]);
    assert_eq!(serde_json::from_slice::<Vec<Value>>(&out.stdout).unwrap().len(), 2);
    let out = controller.run(&["fork", "--tag", "broken", "-n", "2"]);
    assert_eq!(out.status.code(), Some(5));
    assert!(text(&out.stderr).contains("\n  child 1: no memory\n"), "{}", text(&out.stderr));
    for n in ["0", "1001"] {
        assert_eq!(controller.run(&["fork", "--tag", "py", "-n", n]).status.code(), Some(2));
    }
}

#[test]
fn a_fork_in_the_foreground_ends_its_children_with_itself() {
    let controller = Controller::start();
    let args = ["fork", "--tag", "py", "-n", "2", "--settle-secs", "3600"];
    let mut child = controller.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    let mut killed = controller.seen.killed.lock().unwrap().clone();
    killed.sort();
    assert_eq!(killed, ["sb-1", "sb-2"]);
}

#[test]
fn running_makes_a_snapshot_of_the_image_as_it_is_removes_only_its_own_old_one_and_ends_its_child() {
    let controller = Controller::start();
    let out = controller.run(&["run", "--image", "py", "--", "mixed"]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert_eq!(out.stdout.len(), 256);
    assert_eq!(*controller.seen.killed.lock().unwrap(), [run_tag("before"), "sb-1".to_owned()]);
}

#[test]
fn the_quickstart_reuses_what_is_there_and_leaves_no_children() {
    let controller = Controller::start();
    let out = controller.run(&["quickstart", "-n", "3"]);
    let shown = text(&out.stdout);
    assert_eq!(shown.lines().filter(|l| l.starts_with("sb-")).count(), 3, "{shown}");
    assert!(shown.contains("5.00 MiB") && shown.contains("forkd fork --tag"), "{shown}");
    // The command in the children failed, and that is not hidden.
    assert_eq!(out.status.code(), Some(1));
    let mut killed = controller.seen.killed.lock().unwrap().clone();
    killed.sort();
    assert_eq!(killed, ["sb-1", "sb-2", "sb-3"]);
}

#[test]
fn exec_as_json_is_the_apis_own_answer() {
    let controller = Controller::start();
    let out = controller.run(&["exec", "sb-1", "--json", "--", "a", "b", "c"]);
    assert_eq!(out.status.code(), Some(4));
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["stdout"], "3");
}

#[test]
fn killing_all_names_those_that_were_there() {
    let controller = Controller::start();
    let out = controller.run(&["kill", "--all"]);
    assert_eq!(text(&out.stdout), "sb-1\nsb-2\n");
    assert_eq!(controller.run(&["kill"]).status.code(), Some(2));
}

#[test]
fn making_a_snapshot_shows_progress_and_keeps_the_status_of_a_failure() {
    let controller = Controller::start();
    let out = controller.run(&["snapshot", "--image", "py", "--tag", "t", "--vcpus", "2", "--json"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&out.stdout).unwrap()["vcpus"], 2);
    assert!(text(&out.stderr).contains("booting"));
    let out = controller.run(&["snapshot", "--image", "py", "--tag", "taken"]);
    assert_eq!(out.status.code(), Some(4));
    for bad in ["..", "a/../b", "-x", "ü"] {
        let out = controller.run(&["snapshot", "--image", "py", &format!("--tag={bad}")]);
        assert_eq!(out.status.code(), Some(2), "{bad}");
    }
}

#[test]
fn no_controller_where_one_was_named_is_said_so() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkd"));
    let out = command.args(["ls"]).env("FORKD_URL", "unix:/nonexistent/socket").output().unwrap();
    assert_eq!(out.status.code(), Some(9));
    assert!(text(&out.stderr).contains("unix:/nonexistent/socket"));
}

#[test]
fn every_verb_has_help_with_an_example() {
    let help = |args: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_forkd")).args(args).arg("--help").output().unwrap();
        assert!(out.status.success(), "{args:?}");
        text(&out.stdout)
    };
    let verbs = |help: &str| -> Vec<String> {
        let listed = help.split_once("Commands:\n").map_or("", |(_, rest)| rest);
        let lines = listed.lines().take_while(|l| l.starts_with("  "));
        // Descriptions that go over several lines are indented further than names.
        lines
            .filter(|l| !l.starts_with("   "))
            .filter_map(|l| Some(l.split_whitespace().next()?.to_owned()))
            .collect()
    };
    let top = help(&[]);
    assert!(top.contains("Exit codes:"));
    assert!(verbs(&top).len() >= 16, "{top}");
    for verb in verbs(&top) {
        let own = help(&[&verb]);
        let has_example = own.contains("Example");
        let below = verbs(&own);
        assert!(has_example || !below.is_empty(), "{verb} has no example:\n{own}");
        // Where a verb has verbs of its own, its example may stand for theirs.
        for sub in below {
            let own = help(&[&verb, &sub]);
            assert!(has_example || own.contains("Example"), "{verb} {sub} has no example:\n{own}");
        }
    }
}

/// Waits for something that surely comes.
#[track_caller]
fn until(there: impl Fn() -> bool) {
    let began = Instant::now();
    while !there() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn sandboxes_are_paused_and_resumed_one_and_all() {
    let controller = Controller::start();
    let text = |out: &[u8]| String::from_utf8(out.to_vec()).unwrap();
    let paused = controller.run(&["pause", "sb-1", "sb-busy", "sb-2"]);
    assert_eq!(paused.status.code(), Some(4));
    assert_eq!(text(&paused.stdout), "sb-1 is paused\nsb-2 is paused\n");
    assert!(text(&paused.stderr).contains("sb-busy is starting"), "{}", text(&paused.stderr));
    let resumed = controller.run(&["--json", "resume", "sb-1"]);
    let infos: Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert_eq!((infos[0]["id"].as_str(), infos[0]["state"].as_str()), (Some("sb-1"), Some("running")));
    assert_eq!(controller.run(&["pause"]).status.code(), Some(2));
}

#[test]
fn a_snapshot_is_taken_of_a_sandbox_or_made_again() {
    let controller = Controller::start();
    let json = |args: &[&str]| -> Value {
        let ran = controller.run(args);
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
        serde_json::from_slice(&ran.stdout).unwrap()
    };
    let branch = json(&["--json", "snapshot", "--from-sandbox", "sb-1", "--tag", "b", "--no-wait"]);
    assert_eq!((&branch["branched_from"], &branch["status"]), (&json!("sb-1"), &json!("writing")));
    assert_eq!(json(&["--json", "snapshot", "refresh", "py"])["tag"], "py");
    assert_eq!(json(&["--json", "snapshot", "refresh", "py", "--tag", "new"])["tag"], "new");
    for wrong in [
        &["snapshot", "--tag", "b"][..],
        &["snapshot", "--image", "py"],
        &["snapshot", "--image", "py", "--tag", "b", "--no-wait"],
        &["snapshot", "--image", "py", "--from-sandbox", "sb-1", "--tag", "b"],
        &["snapshot", "--from-sandbox", "sb-1", "--vcpus", "2"],
        &["snapshot", "refresh"],
    ] {
        assert_eq!(controller.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
