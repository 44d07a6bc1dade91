//! A controller that forks, branches and forgets without any virtual machine.

use std::collections::BTreeMap;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use base64::Engine as _;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

/// The most children that this controller has room for.
const ROOM: u64 = 5;
/// What is there before anything is measured, and its memory.
const SNAPSHOTS: [(&str, u64); 4] =
    [("bench-numpy", 512), ("bench-branch", 1024), ("bench-branch-512", 512), ("bench-branch-2048", 2048)];

/// What happened, and what is to go wrong.
#[derive(Default)]
pub(crate) struct Life {
    /// Sandboxes and what they were forked from.
    pub(crate) alive: Mutex<BTreeMap<String, Value>>,
    pub(crate) born: Mutex<u64>,
    pub(crate) evals: Mutex<Vec<String>>,
    /// Beside [`SNAPSHOTS`].
    pub(crate) snapshots: Mutex<Vec<Value>>,
    /// Requests for branches.
    pub(crate) branches: Mutex<Vec<Value>>,
    pub(crate) answers_wrongly: bool,
    /// Which branch is refused, counted from 1.
    pub(crate) refused: usize,
}

pub(crate) struct Controller {
    pub(crate) url: String,
    pub(crate) life: Arc<Life>,
    _runtime: tokio::runtime::Runtime,
}

impl Controller {
    pub(crate) fn start(life: Life) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let life = Arc::new(life);
        let stats =
            json!({ "monitor_private_bytes": 2 << 20, "guest_private_bytes": 4096, "guest_shared_bytes": 0 });
        let router = Router::new()
            .route("/v1/snapshots", get(list))
            .route("/v1/snapshots/{tag}", delete(remove))
            .route("/v1/snapshots/{tag}/info", get(info))
            .route("/v1/snapshots/{tag}/compact", post(compact))
            .route("/v1/sandboxes", post(fork))
            .route("/v1/sandboxes/{id}", delete(kill))
            .route("/v1/sandboxes/{id}/branch", post(branch))
            .route("/v1/sandboxes/{id}/eval", post(eval))
            .route("/v1/sandboxes/{id}/exec", post(exec))
            .route("/v1/sandboxes/{id}/tunnel/{to}", post(tunnel))
            .route("/v1/sandboxes/{id}/agent/process.Process/Start", post(start))
            .route("/v1/sandboxes/{id}/stats", get(move || async { Json(stats) }))
            .with_state(Arc::clone(&life));
        let url = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            tokio::spawn(async move { axum::serve(listener, router).await });
            url
        });
        Self { url, life, _runtime: runtime }
    }

    pub(crate) fn bench(&self, args: &[&str]) -> Output {
        let empty = tempfile::tempdir().unwrap();
        Command::new(env!("CARGO_BIN_EXE_forkd"))
            .arg("bench")
            .args(args)
            .env("FORKD_URL", &self.url)
            .env("FORKD_MACHINE_DIR", empty.path())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The report of a run that succeeds.
    pub(crate) fn report(&self, args: &[&str]) -> Value {
        let out = self.bench(&[args, &["--json"]].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// How many sandboxes there are.
    pub(crate) fn left(&self) -> usize {
        self.life.alive.lock().unwrap().len()
    }

    /// Snapshots beside those that were there before.
    pub(crate) fn made(&self) -> Vec<String> {
        let all = self.life.snapshots.lock().unwrap();
        all.iter().map(|s| s["tag"].as_str().unwrap().to_owned()).collect()
    }
}

impl Life {
    fn find(&self, tag: &str) -> Option<Value> {
        let made = self.snapshots.lock().unwrap().iter().find(|s| s["tag"] == tag).cloned();
        let given = SNAPSHOTS.iter().find(|(name, _)| *name == tag);
        made.or_else(|| given.map(|(name, memory)| snapshot(name, *memory, 1)))
    }
}

fn snapshot(tag: &str, memory_mib: u64, depth: u64) -> Value {
    json!({
        "tag": tag, "dir": "/d", "created_at_unix": 1, "status": "ready", "bootable": true, "image": "py",
        "kernel": "k", "vcpus": 1, "memory_mib": memory_mib, "memory_physical_bytes": 1 << 20,
        "memory_hash": "h", "chain_depth": depth, "timing": { "boot_ms": 1, "warm_ms": 2, "write_ms": 3 }
    })
}

fn refusal(status: StatusCode, code: &str, error: &str) -> Response {
    (status, Json(json!({ "error": error, "code": code }))).into_response()
}

fn missing() -> Response {
    refusal(StatusCode::NOT_FOUND, "not_found", "there is none")
}

/// A snapshot that is being written is ready when it is looked at a second time.
async fn list(State(life): State<Arc<Life>>) -> Json<Value> {
    let mut made = life.snapshots.lock().unwrap();
    let given = SNAPSHOTS.iter().map(|(tag, memory)| snapshot(tag, *memory, 1));
    let all = given.chain(made.iter().cloned()).collect();
    for snapshot in made.iter_mut() {
        snapshot["status"] = json!("ready");
    }
    Json(all)
}

async fn remove(State(life): State<Arc<Life>>, Path(tag): Path<String>) -> Response {
    let mut made = life.snapshots.lock().unwrap();
    match made.iter().position(|s| s["tag"] == tag.as_str()) {
        Some(at) if made[at]["status"] == "writing" => {
            refusal(StatusCode::CONFLICT, "not_ready", "it is being written")
        }
        Some(at) => {
            made.remove(at);
            StatusCode::NO_CONTENT.into_response()
        }
        None => missing(),
    }
}

async fn info(State(life): State<Arc<Life>>, Path(tag): Path<String>) -> Response {
    let Some(snapshot) = life.find(&tag) else { return missing() };
    let depth = snapshot["chain_depth"].as_u64().unwrap();
    let layer = json!({ "hash": "h", "logical_bytes": 1 << 20, "physical_bytes": 1 << 20, "extents": 7 });
    let layers: Vec<_> = (0..depth).map(|_| layer.clone()).collect();
    Json(json!({
        "tag": tag, "id": "i", "dir": "/d", "created_at_unix": 1, "memory_logical_bytes": 1 << 29,
        "memory_physical_bytes": depth << 20, "view_physical_bytes": 1 << 20, "disk_logical_bytes": 0,
        "disk_physical_bytes": 0, "vmstate_bytes": 1, "chain_depth": depth, "ancestors": [], "dependents": [],
        "memory_layers": layers, "disk_layers": [], "image": "py", "image_hash": "h", "kernel": "k",
        "agent_protocol": 1
    }))
    .into_response()
}

async fn compact(
    State(life): State<Arc<Life>>,
    Path(tag): Path<String>,
    Json(request): Json<Value>,
) -> Response {
    let Some(from) = life.find(&tag) else { return missing() };
    let flat = snapshot(request["to"].as_str().unwrap(), from["memory_mib"].as_u64().unwrap(), 1);
    life.snapshots.lock().unwrap().push(flat.clone());
    (StatusCode::CREATED, Json(flat)).into_response()
}

async fn fork(State(life): State<Arc<Life>>, Json(request): Json<Value>) -> Response {
    let n = request["n"].as_u64().unwrap();
    if n > ROOM {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "exhausted", "no memory is left");
    }
    let Some(from) = life.find(request["snapshot_tag"].as_str().unwrap()) else { return missing() };
    let mut born = life.born.lock().unwrap();
    let children = (0..n).map(|i| {
        *born += 1;
        let id = format!("sb-{born}");
        life.alive.lock().unwrap().insert(id.clone(), from.clone());
        json!({
            "id": id, "snapshot_tag": from["tag"], "netns": null, "guest_addr": "", "created_at_unix": 1,
            "pid": 7, "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
            "branch_count": 0, "state": "running", "ended": null,
            "timing": { "started_us": 1, "restored_us": 1000 * (i + 1), "answered_us": 2000 * (i + 1) }
        })
    });
    (StatusCode::CREATED, Json(children.collect::<Value>())).into_response()
}

async fn branch(
    State(life): State<Arc<Life>>,
    Path(id): Path<String>,
    Json(request): Json<Value>,
) -> Response {
    let Some(from) = life.alive.lock().unwrap().get(&id).cloned() else { return missing() };
    let mut branches = life.branches.lock().unwrap();
    branches.push(request.clone());
    if branches.len() == life.refused {
        return refusal(StatusCode::CONFLICT, "guest_did_not_freeze", "the guest did not freeze");
    }
    let depth = if request["mode"] == "full" { 1 } else { from["chain_depth"].as_u64().unwrap() + 1 };
    let memory = from["memory_mib"].as_u64().unwrap();
    let mut made = snapshot(request["tag"].as_str().unwrap(), memory, depth);
    made["parent_tag"] = from["tag"].clone();
    (made["pause_ms"], made["workload_pause_ms"]) = (json!(2.0), json!(6.0));
    if request["wait"] == false {
        made["status"] = json!("writing");
    }
    life.snapshots.lock().unwrap().push(made.clone());
    (StatusCode::CREATED, Json(made)).into_response()
}

async fn kill(State(life): State<Arc<Life>>, Path(id): Path<String>) -> StatusCode {
    if life.alive.lock().unwrap().remove(&id).is_some() {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::NOT_FOUND
    }
}

/// What the ticker would have seen, by the newest branch.
fn ticks(life: &Life) -> Value {
    let mode = life.branches.lock().unwrap().last().map(|request| request["mode"].clone());
    let gap = match mode.as_ref().and_then(Value::as_str) {
        Some("live") => 10.0,
        Some("diff") => 100.0,
        _ => 150.0,
    };
    json!({ "gap_ms": gap, "ticks_before": 900, "ticks_after": 600 })
}

async fn eval(State(life): State<Arc<Life>>, Json(request): Json<Value>) -> Json<Value> {
    let code = request["code"].as_str().unwrap().to_owned();
    let right = if code == "1+1" { "2" } else { "45" };
    let json = (code == "ticker.end()").then(|| ticks(&life).to_string());
    life.evals.lock().unwrap().push(code);
    Json(json!({
        "result": if life.answers_wrongly { "3" } else { right }, "exit_code": 0, "stdout": "", "error": null,
        "traceback": null, "result_json": json, "stderr": "", "timed_out": false, "truncated": false,
        "micros": 5
    }))
}

async fn exec(Json(request): Json<Value>) -> Json<Value> {
    assert!(["python3", "true"].contains(&request["args"][0].as_str().unwrap()));
    Json(json!({
        "stdout": "2\n", "stderr": "", "exit_code": 0, "truncated": false, "timed_out": false, "micros": 5
    }))
}

/// Sends back what it is sent, or zeroes.
async fn tunnel(Path((_, to)): Path<(String, String)>, mut request: Request) -> Response {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
        if to == "echo" {
            drop(tokio::io::copy(&mut read, &mut write).await);
        } else {
            drop(tokio::io::copy(&mut tokio::io::repeat(0), &mut write).await);
        }
    });
    let headers = [("connection", "upgrade"), ("upgrade", "forkd-tunnel")];
    (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
}

/// The output of `head`, as the agent streams it.
async fn start(body: Bytes) -> Vec<u8> {
    let asked: Value = serde_json::from_slice(&body[5..]).unwrap();
    let bytes = asked["process"]["args"][1].as_str().unwrap().parse::<usize>().unwrap();
    let envelope = |flags: u8, value: Value| {
        let text = value.to_string();
        let length = u32::try_from(text.len()).unwrap().to_be_bytes();
        [&[flags][..], &length, text.as_bytes()].concat()
    };
    let data = base64::engine::general_purpose::STANDARD.encode(vec![0; bytes]);
    [
        envelope(0, json!({ "event": { "start": { "pid": 7 } } })),
        envelope(0, json!({ "event": { "data": { "stdout": data } } })),
        envelope(
            0,
            json!({ "event": { "end": { "exitCode": 0, "exited": true, "status": "exit status 0" } } }),
        ),
        envelope(2, json!({})),
    ]
    .concat()
}
