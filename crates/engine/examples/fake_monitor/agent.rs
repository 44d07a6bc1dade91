//! The agent of the fake: HTTP behind the vsock handshake.

use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forkd_protocol::guest::{
    Continuation, Eval, Evaluated, Exec, Executed, Frozen, GUEST_VERSION, GiveSecrets, GuestRefusal,
    GuestSecret, Health, Identified, Identity, PATH_CONTINUE, PATH_EVAL, PATH_EXEC, PATH_FREEZE, PATH_HEALTH,
    PATH_IDENTITY, PATH_SECRETS, PATH_THAW, PATH_TUNNEL, PATH_WARM, PORT_NOT_OPEN, PythonError,
    TUNNEL_PROTOCOL, Thaw, Warm,
};
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Anyhow, complain};

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

struct Agent {
    mood: String,
    identity: Mutex<String>,
    connections: AtomicU64,
    frozen: AtomicBool,
    secrets: Mutex<Vec<GuestSecret>>,
    last_words: Option<File>,
}

/// Serves for ever, on threads of its own. The workload of a restored guest stands still at first.
pub(crate) fn serve(listener: UnixListener, last_words: Option<File>, mood: String, restored: bool) {
    let agent = Arc::new(Agent {
        mood,
        identity: Mutex::default(),
        connections: AtomicU64::new(0),
        frozen: AtomicBool::new(restored),
        secrets: Mutex::default(),
        last_words,
    });
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let agent = Arc::clone(&agent);
            std::thread::spawn(move || agent.connection(stream));
        }
    });
}

impl Agent {
    fn connection(self: Arc<Self>, mut stream: UnixStream) -> Anyhow<()> {
        let mut line = String::new();
        BufReader::with_capacity(1, &stream).read_line(&mut line)?;
        match self.mood.as_str() {
            "deaf" => return Ok(()),
            "mute" => loop {
                std::thread::park();
            },
            "babble" => stream.write_all(&[b'x'; 4096])?,
            "early" => stream.write_all(b"OK 1\nHTTP/1.1 200 OK\r\n\r\n")?,
            _ => stream.write_all(b"OK 1073741824\n")?,
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        stream.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let io = TokioIo::new(tokio::net::UnixStream::from_std(stream)?);
            let service = service_fn(|request| {
                let agent = Arc::clone(&self);
                async move { agent.answer(request).await }
            });
            let tunnels = tokio::task::LocalSet::new();
            let serving = http1::Builder::new().serve_connection(io, service).with_upgrades();
            tunnels.run_until(serving).await?;
            // What became another connection ends by itself.
            tunnels.await;
            Ok(())
        })
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let path = request.uri().path().to_owned();
        let answer = match path.as_str() {
            PATH_HEALTH => Ok(self.health()),
            PATH_IDENTITY => self.take_identity(request).await,
            PATH_CONTINUE => self.go_on(request).await,
            PATH_FREEZE => self.freeze().await,
            PATH_THAW => self.thaw(request).await,
            PATH_SECRETS => self.take_secrets(request).await,
            PATH_WARM => warm(request).await,
            PATH_EVAL => eval(request).await,
            PATH_EXEC => self.exec(request).await,
            "/echo" | "/files" => Ok(echo(request)),
            "/health" => Ok(full(Vec::new())),
            path if path.starts_with(PATH_TUNNEL) => Ok(tunnel(request).await),
            _ => Ok(refusal(StatusCode::NOT_FOUND, "no_such_verb", "there is no such verb")),
        };
        Ok(answer.unwrap_or_else(|e| refusal(StatusCode::BAD_REQUEST, "bad_request", &e.to_string())))
    }

    fn health(&self) -> Response<Body> {
        let identity = self.identity.lock().map(|i| i.clone()).unwrap_or_default();
        json(&Health {
            protocol: match self.mood.as_str() {
                "other-agent" => 99,
                "old-agent" => 1,
                _ => GUEST_VERSION,
            },
            agent: "fake".to_owned(),
            identity,
            warm: true,
            numpy_version: Some("2.0".to_owned()),
            frozen: false,
            // Of the mood that keeps something running.
            processes: u64::from(self.mood == "working"),
        })
    }

    async fn take_identity(&self, request: Request<Incoming>) -> Anyhow<Response<Body>> {
        let identity: Identity = body(request).await?;
        match self.mood.as_str() {
            "no-identity" => {
                return Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR, "after_fork_failed", "a hook failed"));
            }
            "die-at-identity" => exit(9),
            "stall-at-identity" => drop(stall().await),
            _ => {}
        }
        if let Ok(mut own) = self.identity.lock() {
            *own = identity.id;
        }
        if let Ok(mut own) = self.secrets.lock() {
            *own = identity.secrets;
        }
        self.frozen.store(false, Ordering::Relaxed);
        Ok(json(&Identified { steps: vec![("names".to_owned(), 1)] }))
    }

    async fn go_on(&self, request: Request<Incoming>) -> Anyhow<Response<Body>> {
        let _: Continuation = body(request).await?;
        match self.mood.as_str() {
            "no-continue" => {
                Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR, "identity_failed", "the clock cannot be set"))
            }
            "die-at-continue" => exit(9),
            "stall-at-continue" => Ok(stall().await),
            _ => Ok(json(&Identified { steps: vec![("clock".to_owned(), 1)] })),
        }
    }

    /// As the agent does: what is not given again is gone.
    async fn thaw(&self, request: Request<Incoming>) -> Anyhow<Response<Body>> {
        let thaw: Thaw = body(request).await?;
        if self.frozen.swap(false, Ordering::Relaxed)
            && let Ok(mut own) = self.secrets.lock()
        {
            *own = thaw.secrets;
        }
        Ok(json(&serde_json::json!({})))
    }

    async fn take_secrets(&self, request: Request<Incoming>) -> Anyhow<Response<Body>> {
        let given: GiveSecrets = body(request).await?;
        if let Ok(mut own) = self.secrets.lock() {
            own.retain(|old| given.secrets.iter().all(|new| new.name != old.name));
            own.extend(given.secrets);
        }
        Ok(json(&serde_json::json!({})))
    }

    fn shown_secrets(&self) -> String {
        let own = self.secrets.lock().map(|own| own.clone()).unwrap_or_default();
        let text = |secret: &GuestSecret| {
            let value = STANDARD.decode(&secret.value_base64).unwrap_or_default();
            format!("{}={}", secret.name, String::from_utf8_lossy(&value))
        };
        own.iter().map(text).collect::<Vec<_>>().join(" ")
    }

    async fn freeze(&self) -> Anyhow<Response<Body>> {
        match self.mood.as_str() {
            "no-freeze" => Ok(refusal(StatusCode::CONFLICT, "guest_did_not_freeze", "still running")),
            "stall-at-freeze" => Ok(stall().await),
            _ => {
                self.frozen.store(true, Ordering::Relaxed);
                if let Ok(mut own) = self.secrets.lock() {
                    own.clear();
                }
                Ok(json(&Frozen { micros: 1 }))
            }
        }
    }

    async fn exec(&self, request: Request<Incoming>) -> Anyhow<Response<Body>> {
        let exec: Exec = body(request).await?;
        let verb = exec.args.first().map(String::as_str).unwrap_or_default();
        Ok(match verb {
            "connections" => executed(self.connections.load(Ordering::Relaxed).to_string().as_bytes()),
            "secrets" => executed(self.shown_secrets().as_bytes()),
            "frozen" => executed(self.frozen.load(Ordering::Relaxed).to_string().as_bytes()),
            "bytes" => executed(&(0..=255).collect::<Vec<u8>>()),
            "stall" => stall().await,
            "flood" => streamed(stream::repeat_with(|| Ok(Frame::data(Bytes::from(vec![b' '; 1 << 16]))))),
            "trickle" => streamed(stream::unfold((), |()| async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Ok(Frame::data(Bytes::from_static(b" "))), ()))
            })),
            "cut" => streamed(stream::iter([
                Ok(Frame::data(Bytes::from_static(b"{"))),
                Err(std::io::ErrorKind::Other.into()),
            ])),
            "nonsense" => full(b"{\"exit_code\": \"zero\"".to_vec()),
            "headers" => many_headers(),
            "refuse" => refusal(StatusCode::BAD_REQUEST, "no_such_user", "there is no user x"),
            "stop" => {
                complain("stopped itself");
                exit(7)
            }
            "shutdown" => {
                if let Some(mut file) = self.last_words.as_ref() {
                    file.write_all(br#"{"how":"shutdown"}"#)?;
                }
                exit(0)
            }
            _ => executed(exec.args.join(" ").as_bytes()),
        })
    }
}

async fn warm(request: Request<Incoming>) -> Anyhow<Response<Body>> {
    let warm: Warm = body(request).await?;
    Ok(match warm.code.as_str() {
        "stall" => stall().await,
        "raise" => json(&Evaluated { error: Some(no_module()), ..Evaluated::default() }),
        "loop" => json(&Evaluated { error: Some(no_module()), timed_out: true, ..Evaluated::default() }),
        "stop" => {
            complain("stopped itself");
            exit(7)
        }
        _ => json(&Evaluated::default()),
    })
}

fn no_module() -> PythonError {
    PythonError {
        name: "ModuleNotFoundError".to_owned(),
        value: "No module named 'nope'".to_owned(),
        traceback: "Traceback (most recent call last):\n  File \"<warm>\", line 1\n".to_owned(),
    }
}

async fn eval(request: Request<Incoming>) -> Anyhow<Response<Body>> {
    let eval: Eval = body(request).await?;
    Ok(json(&Evaluated { result: Some(eval.code), ..Evaluated::default() }))
}

/// Joins the connection with one to that port of this computer.
async fn tunnel(mut request: Request<Incoming>) -> Response<Body> {
    let port = request.uri().path().rsplit('/').next().and_then(|port| port.parse::<u16>().ok());
    let there = tokio::net::TcpStream::connect(("127.0.0.1", port.unwrap_or_default())).await;
    let Ok(mut there) = there else {
        return refusal(StatusCode::BAD_GATEWAY, PORT_NOT_OPEN, "nothing listens there");
    };
    tokio::task::spawn_local(async move {
        if let Ok(here) = hyper::upgrade::on(&mut request).await {
            drop(tokio::io::copy_bidirectional(&mut TokioIo::new(here), &mut there).await);
        }
    });
    let mut response = full(Vec::new());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    for (name, value) in [(http::header::CONNECTION, "upgrade"), (http::header::UPGRADE, TUNNEL_PROTOCOL)] {
        response.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    response
}

/// Streams the body back, with what arrived of the headers.
fn echo(request: Request<Incoming>) -> Response<Body> {
    let seen = request.headers().keys().map(|k| k.as_str().to_owned()).collect::<Vec<_>>().join(",");
    let mut response = Response::new(request.into_body().map_err(std::io::Error::other).boxed_unsync());
    if let Ok(seen) = seen.parse() {
        response.headers_mut().insert("x-seen", seen);
    }
    response
}

async fn stall() -> Response<Body> {
    std::future::pending().await
}

async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Anyhow<T> {
    Ok(serde_json::from_slice(&request.into_body().collect().await?.to_bytes())?)
}

fn executed(stdout: &[u8]) -> Response<Body> {
    json(&Executed {
        exit_code: 0,
        signal: None,
        stdout_base64: STANDARD.encode(stdout),
        stderr_base64: String::new(),
        truncated: false,
        timed_out: false,
        micros: 1,
    })
}

fn json(value: &impl Serialize) -> Response<Body> {
    full(serde_json::to_vec(value).unwrap_or_default())
}

fn full(bytes: Vec<u8>) -> Response<Body> {
    Response::new(Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync())
}

fn streamed(
    chunks: impl futures::Stream<Item = Result<Frame<Bytes>, std::io::Error>> + Send + 'static,
) -> Response<Body> {
    Response::new(StreamBody::new(chunks).boxed_unsync())
}

fn many_headers() -> Response<Body> {
    let mut response = full(Vec::new());
    let value = "v".repeat(4000);
    for n in 0..50 {
        if let (Ok(name), Ok(value)) = (format!("x-{n}").parse::<http::HeaderName>(), value.parse()) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

fn refusal(status: StatusCode, code: &str, message: &str) -> Response<Body> {
    let mut response = json(&GuestRefusal { code: code.to_owned(), message: message.to_owned() });
    *response.status_mut() = status;
    response
}
