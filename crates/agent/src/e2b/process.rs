//! `process.Process`: start, attach to, feed and end processes.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::connect::{
    self, Code, ConnectError, Empty, Envelopes, STREAM, expect, parse, read_first, read_unary, unary,
};
use super::events::{EventStream, encode_output};
use super::user_of;
use crate::agent::Agent;
use crate::http::{Body, Response};
use crate::process::{Command, InputError, Session, SessionSpec, StartError, expand};

const TIMEOUT: &str = "connect-timeout-ms";
const KEEPALIVE: &str = "keepalive-ping-interval";
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);
/// `1`: the process tree ends when the client goes away.
const TIE: &str = "x-forkd-tie";

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Config {
    cmd: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Size {
    #[serde(default)]
    cols: u32,
    #[serde(default)]
    rows: u32,
}

#[derive(Debug, Deserialize)]
struct Pty {
    size: Option<Size>,
}

#[derive(Debug, Deserialize)]
struct StartRequest {
    process: Config,
    pty: Option<Pty>,
    tag: Option<String>,
    /// Absent means no input: a process that nobody will write to must see its end at once.
    #[serde(default)]
    stdin: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Selector {
    Pid(u32),
    Tag(String),
}

#[derive(Debug, Deserialize)]
struct Selected {
    process: Selector,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Input {
    Stdin(String),
    Pty(String),
}

#[derive(Debug, Deserialize)]
struct InputRequest {
    process: Selector,
    input: Input,
}

#[derive(Debug, Deserialize)]
struct SignalRequest {
    process: Selector,
    signal: SignalName,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SignalName {
    Name(String),
    Number(i32),
}

#[derive(Debug, Deserialize)]
struct UpdateRequest {
    process: Selector,
    pty: Option<Pty>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum StreamInput {
    Start(Selected),
    Data { input: Input },
    Keepalive(Empty),
}

#[derive(Debug, Serialize)]
struct Listed {
    config: Config,
    pid: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Whether it has a terminal; ours.
    terminal: bool,
}

#[derive(Debug, Serialize)]
struct List {
    processes: Vec<Listed>,
}

/// Answers a method of the service.
pub(crate) async fn call(agent: Rc<Agent>, method: &str, request: Request<Incoming>) -> Response {
    match method {
        "Start" => start(agent, request).await.unwrap_or_else(ConnectError::into_stream),
        "Connect" => attach(agent, request).await.unwrap_or_else(ConnectError::into_stream),
        "StreamInput" => stream_input(agent, request).await,
        "List" => unary(list(&agent, request).await),
        "SendInput" => unary(send_input(&agent, request).await),
        "CloseStdin" => unary(close_stdin(&agent, request).await),
        "SendSignal" => unary(send_signal(&agent, request).await),
        "Update" => unary(update(&agent, request).await),
        _ => {
            ConnectError::new(Code::Unimplemented, format!("process.Process has no {method}")).into_response()
        }
    }
}

async fn start(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, ConnectError> {
    let user = user_of(request.headers(), agent.spawner.image())?;
    let timeout = milliseconds(request.headers(), TIMEOUT);
    let tied = request.headers().get(TIE).is_some_and(|value| value == "1");
    let keepalive = keepalive(request.headers());
    let start: StartRequest = read_first(request).await?;
    let terminal = start.pty.map(|pty| window(pty.size)).transpose()?;
    let spec = SessionSpec {
        command: Command {
            program: start.process.cmd,
            args: start.process.args,
            env: start.process.envs,
            cwd: start.process.cwd,
            user: Some(user.name),
        },
        tag: start.tag,
        stdin: start.stdin,
        terminal,
    };
    let session = agent.sessions.start(&agent.spawner, spec, encode_output).await?;
    if let Some(timeout) = timeout {
        tokio::task::spawn_local(session.clone().kill_after(timeout));
    }
    Ok(events(EventStream::new(session, keepalive).tied(tied)))
}

async fn attach(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, ConnectError> {
    let keepalive = keepalive(request.headers());
    let timeout = milliseconds(request.headers(), TIMEOUT);
    let Selected { process } = read_first(request).await?;
    let session = agent.sessions.find_unread(|session| process.selects(session));
    let session = session.ok_or_else(|| process.not_found())?;
    Ok(events(EventStream::new(session, keepalive).until(timeout)))
}

fn events(stream: EventStream) -> Response {
    Body::pieces(stream.into_stream()).respond(hyper::StatusCode::OK, STREAM)
}

async fn list(agent: &Agent, request: Request<Incoming>) -> Result<List, ConnectError> {
    let Empty {} = read_unary(request).await?;
    let listed = |session: Arc<Session>| {
        let command = &session.spec.command;
        Listed {
            config: Config {
                cmd: command.program.clone(),
                args: command.args.clone(),
                envs: command.env.clone(),
                cwd: command.cwd.clone(),
            },
            pid: session.pid,
            tag: session.spec.tag.clone(),
            terminal: session.spec.terminal.is_some(),
        }
    };
    Ok(List { processes: agent.sessions.running().into_iter().map(listed).collect() })
}

async fn send_input(agent: &Agent, request: Request<Incoming>) -> Result<Empty, ConnectError> {
    let InputRequest { process, input } = read_unary(request).await?;
    input.write_to(&*process.running(agent)?).await?;
    Ok(Empty {})
}

async fn close_stdin(agent: &Agent, request: Request<Incoming>) -> Result<Empty, ConnectError> {
    let Selected { process } = read_unary(request).await?;
    process.running(agent)?.close_stdin().await?;
    Ok(Empty {})
}

async fn send_signal(agent: &Agent, request: Request<Incoming>) -> Result<Empty, ConnectError> {
    let SignalRequest { process, signal } = read_unary(request).await?;
    let session = process.running(agent)?;
    match signal {
        SignalName::Name(name) if name == "SIGNAL_SIGKILL" => session.kill_tree(),
        SignalName::Number(libc::SIGKILL) => session.kill_tree(),
        SignalName::Name(name) if name == "SIGNAL_SIGTERM" => session.signal(Signal::SIGTERM),
        // Beyond what E2B's service has: any signal, by its number.
        SignalName::Number(number) if Signal::try_from(number).is_ok() => {
            session.signal(Signal::try_from(number).unwrap_or(Signal::SIGTERM));
        }
        other => return Err(ConnectError::invalid(format!("signal {other:?} cannot be sent"))),
    }
    Ok(Empty {})
}

async fn update(agent: &Agent, request: Request<Incoming>) -> Result<Empty, ConnectError> {
    let UpdateRequest { process, pty } = read_unary(request).await?;
    let session = process.running(agent)?;
    if let Some(pty) = pty {
        let (columns, rows) = window(pty.size)?;
        session.resize(columns, rows)?;
    }
    Ok(Empty {})
}

/// Messages in, one message out; the client ends by ending its body.
async fn stream_input(agent: Rc<Agent>, request: Request<Incoming>) -> Response {
    match feed(&agent, request).await {
        Ok(()) => {
            let frames = [connect::message(&Empty {}), connect::end(None)].concat();
            Body::whole(frames).respond(hyper::StatusCode::OK, STREAM)
        }
        Err(error) => error.into_stream(),
    }
}

async fn feed(agent: &Agent, request: Request<Incoming>) -> Result<(), ConnectError> {
    expect(&request, STREAM)?;
    let mut body = request.into_body();
    let mut envelopes = Envelopes::default();
    let mut session: Option<Arc<Session>> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| ConnectError::new(Code::Unavailable, e.to_string()))?;
        let Ok(bytes) = frame.into_data() else { continue };
        envelopes.feed(&bytes);
        while let Some(message) = envelopes.next()? {
            match (parse(&message)?, &session) {
                (StreamInput::Start(selected), _) => session = Some(selected.process.running(agent)?),
                (StreamInput::Data { input }, Some(session)) => input.write_to(session).await?,
                (StreamInput::Data { .. }, None) => {
                    return Err(ConnectError::invalid("data before a process was named"));
                }
                (StreamInput::Keepalive(Empty {}), _) => {}
            }
        }
    }
    Ok(())
}

impl Selector {
    fn selects(&self, session: &Session) -> bool {
        match self {
            Self::Pid(pid) => i64::from(*pid) == i64::from(session.pid),
            Self::Tag(tag) => session.spec.tag.as_ref() == Some(tag),
        }
    }

    fn running(&self, agent: &Agent) -> Result<Arc<Session>, ConnectError> {
        agent.sessions.find(|session| self.selects(session)).ok_or_else(|| self.not_found())
    }

    fn not_found(&self) -> ConnectError {
        let what = match self {
            Self::Pid(pid) => format!("process with pid {pid} not found"),
            Self::Tag(tag) => format!("process with tag {tag} not found"),
        };
        ConnectError::new(Code::NotFound, what)
    }
}

impl Input {
    async fn write_to(&self, session: &Session) -> Result<(), ConnectError> {
        let (text, to_terminal) = match self {
            Self::Stdin(text) => (text, false),
            Self::Pty(text) => (text, true),
        };
        let bytes = BASE64.decode(text).map_err(|e| ConnectError::invalid(e.to_string()))?;
        Ok(session.write(&bytes, to_terminal).await?)
    }
}

fn window(size: Option<Size>) -> Result<(u16, u16), ConnectError> {
    let size = size.unwrap_or(Size { cols: 80, rows: 24 });
    let side = |n: u32| {
        u16::try_from(n).map_err(|_| ConnectError::invalid("a terminal has at most 65535 columns and rows"))
    };
    Ok((side(size.cols)?, side(size.rows)?))
}

fn milliseconds(headers: &HeaderMap, name: &str) -> Option<Duration> {
    let value: u64 = headers.get(name)?.to_str().ok()?.parse().ok()?;
    (value > 0).then(|| Duration::from_millis(value))
}

pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds: Option<u64> = headers.get(KEEPALIVE).and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.filter(|seconds| *seconds > 0).map_or(KEEPALIVE_DEFAULT, Duration::from_secs)
}

impl From<StartError> for ConnectError {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::User(_) => Code::Unauthenticated,
            StartError::Frozen => Code::Unavailable,
            StartError::Resources(_) => Code::ResourceExhausted,
            StartError::NotFound(_)
            | StartError::NotExecutable { .. }
            | StartError::Cwd(_)
            | StartError::Malformed(_) => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}

impl From<InputError> for ConnectError {
    fn from(error: InputError) -> Self {
        Self::new(Code::FailedPrecondition, error.to_string())
    }
}

/// Relative to the user's home, as commands are.
pub(super) fn path_of(path: &str, home: &str) -> Result<std::path::PathBuf, ConnectError> {
    if path.contains('\0') {
        return Err(ConnectError::invalid("a path contains a NUL byte"));
    }
    Ok(expand(path, home))
}
