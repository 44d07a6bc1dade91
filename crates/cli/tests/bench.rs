//! `forkd bench` against a controller that plays its part: what it asks, what it reports, and that it leaves
//! nothing running.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

/// The most children that this controller has room for.
const ROOM: u64 = 5;

#[derive(Default)]
struct Life {
    alive: Mutex<BTreeSet<String>>,
    born: Mutex<u64>,
    evals: Mutex<Vec<String>>,
    answers_wrongly: bool,
}

struct Controller {
    url: String,
    life: Arc<Life>,
    _runtime: tokio::runtime::Runtime,
}

impl Controller {
    fn start(life: Life) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let life = Arc::new(life);
        let stats =
            json!({ "monitor_private_bytes": 2 << 20, "guest_private_bytes": 4096, "guest_shared_bytes": 0 });
        let router = Router::new()
            .route("/v1/snapshots", get(|| async { Json(json!([snapshot()])) }))
            .route("/v1/sandboxes", post(fork))
            .route("/v1/sandboxes/{id}", delete(kill))
            .route("/v1/sandboxes/{id}/eval", post(eval))
            .route("/v1/sandboxes/{id}/exec", post(exec))
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

    fn bench(&self, args: &[&str]) -> Output {
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

    fn left(&self) -> usize {
        self.life.alive.lock().unwrap().len()
    }
}

fn snapshot() -> Value {
    json!({
        "tag": "bench-numpy", "dir": "/d", "created_at_unix": 1, "status": "ready", "bootable": true,
        "image": "py", "kernel": "k", "vcpus": 1, "memory_mib": 512, "memory_physical_bytes": 1 << 20,
        "memory_hash": "h", "timing": { "boot_ms": 1, "warm_ms": 2, "write_ms": 3 }
    })
}

async fn fork(State(life): State<Arc<Life>>, Json(request): Json<Value>) -> Response {
    let n = request["n"].as_u64().unwrap();
    if n > ROOM {
        let body = json!({ "error": "no memory is left", "code": "exhausted" });
        return (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response();
    }
    let mut born = life.born.lock().unwrap();
    let children = (0..n).map(|i| {
        *born += 1;
        let id = format!("sb-{born}");
        life.alive.lock().unwrap().insert(id.clone());
        json!({
            "id": id, "snapshot_tag": "bench-numpy", "netns": null, "guest_addr": "", "created_at_unix": 1,
            "pid": 7, "memory_limit_mib": null, "has_branched": false, "last_branch_memory_path": null,
            "branch_count": 0, "state": "running", "ended": null,
            "timing": { "started_us": 1, "restored_us": 1000 * (i + 1), "answered_us": 2000 * (i + 1) }
        })
    });
    (StatusCode::CREATED, Json(children.collect::<Value>())).into_response()
}

async fn kill(State(life): State<Arc<Life>>, Path(id): Path<String>) -> StatusCode {
    if life.alive.lock().unwrap().remove(&id) { StatusCode::NO_CONTENT } else { StatusCode::NOT_FOUND }
}

async fn eval(State(life): State<Arc<Life>>, Json(request): Json<Value>) -> Json<Value> {
    let code = request["code"].as_str().unwrap().to_owned();
    let right = if code == "1+1" { "2" } else { "45" };
    life.evals.lock().unwrap().push(code);
    Json(json!({
        "result": if life.answers_wrongly { "3" } else { right }, "exit_code": 0, "stdout": "", "error": null,
        "traceback": null, "result_json": null, "stderr": "", "timed_out": false, "truncated": false,
        "micros": 5
    }))
}

async fn exec(Json(request): Json<Value>) -> Json<Value> {
    assert_eq!(request["args"][0], "python3");
    Json(json!({ "stdout": "2\n", "stderr": "", "exit_code": 0, "truncated": false, "timed_out": false }))
}

#[test]
fn every_child_is_asked_once_and_ended() {
    let controller = Controller::start(Life::default());
    let out = controller.bench(&["--n", "1,3", "--calls", "20", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let round = &report["rounds"][1];
    assert_eq!(
        (&round["n"], &round["restored_us"], &round["answered_us"]),
        (&json!(3), &json!(3000), &json!(6000))
    );
    assert_eq!(round["first_eval"]["count"], 3);
    assert_eq!((&report["eval"]["warm"]["count"], &report["reused"]), (&json!(20), &json!(true)));
    assert_eq!(report["stopped"], Value::Null);
    assert_eq!(report["goals"][0]["reached"], false, "2 MiB are more than a monitor should take");
    let evals = controller.life.evals.lock().unwrap();
    assert_eq!(evals.iter().filter(|code| code.contains("numpy")).count(), 4);
    assert_eq!((controller.left(), *controller.life.born.lock().unwrap()), (0, 5));
}

#[test]
fn what_was_reached_is_shown_where_there_is_no_room_for_more() {
    let controller = Controller::start(Life::default());
    let out = controller.bench(&["--n", "2,9,3", "--calls", "1"]);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("Stopped early: no memory is left"), "{text}");
    assert!(text.contains("NOT reached  private memory of a monitor outside its guest, N=2"), "{text}");
    assert_eq!((controller.left(), *controller.life.born.lock().unwrap()), (0, 3));
}

#[test]
fn a_wrong_answer_measures_nothing_and_leaves_nothing() {
    let controller = Controller::start(Life { answers_wrongly: true, ..Life::default() });
    let out = controller.bench(&["--n", "2"]);
    assert_eq!(out.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&out.stderr).contains("gave 3 where 45 is right"));
    assert_eq!(controller.left(), 0);
}

#[test]
fn flags_of_one_kind_do_not_go_with_the_other() {
    let controller = Controller::start(Life::default());
    for args in
        [&["--bare", "--tag", "x"][..], &["--against", "1:2:3"], &["--n", "0"], &["--bare", "--against", "1"]]
    {
        assert_eq!(controller.bench(args).status.code(), Some(2), "{args:?}");
    }
}
