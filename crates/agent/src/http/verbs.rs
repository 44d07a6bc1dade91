//! forkd's own verbs: read, call, convert.

use std::rc::Rc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forkd_protocol::error::chain;
use forkd_protocol::guest::{
    self, Continuation, Eval, Exec, Executed, Freeze, GUEST_VERSION, GiveSecrets, GuestRefusal, Health,
    Identity, Thaw, Warm,
};
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::body::{Body, BodyError, Response, read_limited};
use crate::agent::{Agent, FREEZE_BOUND, FreezeError};
use crate::cgroup::Branch;
use crate::identity::{self, IdentityError};
use crate::interpreter::{EvalError, PythonStartError};
use crate::process::{Command, ExecLimits, StartError, execute};

/// Most bytes kept of each stream of an exec, whatever the request asks for: they lie in the guest's memory.
const OUTPUT_MAX: u64 = 256 * 1024 * 1024;

/// A refused verb: status, code for the machine, message for the person.
struct Refused(StatusCode, &'static str, String);

pub(super) async fn health(agent: &Agent) -> Response {
    let status = agent.interpreter.status();
    // While the identity changes, the old one is no answer and the new one not yet true: wait.
    let known = agent.identity.lock().await;
    let identity = known.as_ref().map(|known| known.identity.id.clone()).unwrap_or_default();
    Body::json(
        StatusCode::OK,
        &Health {
            protocol: GUEST_VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            identity,
            warm: status.running,
            numpy_version: status.numpy_version,
            frozen: agent.spawner.is_frozen(),
            processes: agent.sessions.running().len() as u64,
        },
    )
}

pub(super) async fn answer(agent: Rc<Agent>, verb: &str, request: Request<Incoming>) -> Response {
    // The clock of a new identity counts from here.
    let arrived = Instant::now();
    let answered = match verb {
        guest::PATH_WARM => warm(agent, request).await,
        guest::PATH_EVAL => eval(agent, request).await,
        guest::PATH_EXEC => exec(agent, request).await,
        guest::PATH_FREEZE => freeze(agent, request).await,
        guest::PATH_THAW => thaw(agent, request).await,
        guest::PATH_SECRETS => secrets(agent, request).await,
        guest::PATH_IDENTITY => identity(agent, request, arrived).await,
        guest::PATH_CONTINUE => go_on(agent, request, arrived).await,
        _ => Err(Refused(StatusCode::NOT_FOUND, "unknown_verb", format!("this agent has no {verb}"))),
    };
    answered.unwrap_or_else(|Refused(status, code, message)| {
        Body::json(status, &GuestRefusal { code: code.to_owned(), message })
    })
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refused> {
    let body = read_limited(request).await?;
    serde_json::from_slice(&body).map_err(|e| Refused(StatusCode::BAD_REQUEST, "bad_request", e.to_string()))
}

async fn warm(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, Refused> {
    let Warm { code, timeout_ms } = read(request).await?;
    run_python(agent, code, timeout_ms, true).await
}

async fn eval(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, Refused> {
    let Eval { code, timeout_ms } = read(request).await?;
    run_python(agent, code, timeout_ms, false).await
}

async fn run_python(
    agent: Rc<Agent>,
    code: String,
    timeout_ms: u64,
    warm_up: bool,
) -> Result<Response, Refused> {
    if agent.spawner.is_frozen() {
        return Err(StartError::Frozen.into());
    }
    let evaluated = agent.interpreter.eval(code, limit(timeout_ms), warm_up).await?;
    Ok(Body::json(StatusCode::OK, &evaluated))
}

async fn exec(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, Refused> {
    let exec: Exec = read(request).await?;
    let stdin = exec.stdin_base64.map(|text| BASE64.decode(text)).transpose();
    let stdin =
        stdin.map_err(|e| Refused(StatusCode::BAD_REQUEST, "bad_request", format!("stdin_base64: {e}")))?;
    let mut args = exec.args.into_iter();
    let command = Command {
        program: args.next().unwrap_or_default(),
        args: args.collect(),
        env: exec.env,
        cwd: exec.cwd,
        user: exec.user,
    };
    let max_output = usize::try_from(exec.max_output.min(OUTPUT_MAX)).unwrap_or(usize::MAX);
    let limits = ExecLimits { timeout: limit(exec.timeout_ms), max_output };
    let started = Instant::now();
    let finished = execute(&agent.spawner, Branch::Workload, &command, stdin, limits).await?;
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(Body::json(
        StatusCode::OK,
        &Executed {
            exit_code: finished.exit.code(),
            signal: finished.exit.signal_name(),
            stdout_base64: BASE64.encode(&finished.stdout),
            stderr_base64: BASE64.encode(&finished.stderr),
            truncated: finished.truncated,
            timed_out: finished.timed_out,
            micros,
        },
    ))
}

async fn freeze(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, Refused> {
    let Freeze { timeout_ms } = read(request).await?;
    let bound = timeout_ms.map_or(FREEZE_BOUND, Duration::from_millis);
    let frozen = to_the_end(async move { agent.freeze(bound).await }).await??;
    Ok(Body::json(StatusCode::OK, &frozen))
}

async fn thaw(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, Refused> {
    let Thaw { secrets } = read(request).await?;
    to_the_end(async move { agent.thaw(&secrets).await }).await??;
    Ok(Body::json(StatusCode::OK, &serde_json::Map::new()))
}

async fn secrets(agent: Rc<Agent>, request: Request<Incoming>) -> Result<Response, Refused> {
    let GiveSecrets { secrets } = read(request).await?;
    to_the_end(async move { agent.give_secrets(&secrets).await }).await??;
    Ok(Body::json(StatusCode::OK, &serde_json::Map::new()))
}

async fn identity(
    agent: Rc<Agent>,
    request: Request<Incoming>,
    arrived: Instant,
) -> Result<Response, Refused> {
    let identity: Identity = read(request).await?;
    let identified = to_the_end(async move { identity::assume(&agent, identity, arrived).await }).await??;
    Ok(Body::json(StatusCode::OK, &identified))
}

async fn go_on(agent: Rc<Agent>, request: Request<Incoming>, arrived: Instant) -> Result<Response, Refused> {
    let continuation: Continuation = read(request).await?;
    let done = to_the_end(async move { identity::go_on(&agent, continuation, arrived).await }).await??;
    Ok(Body::json(StatusCode::OK, &done))
}

/// What must not be left half done when its caller goes away.
async fn to_the_end<T: 'static>(work: impl Future<Output = T> + 'static) -> Result<T, Refused> {
    tokio::task::spawn_local(work)
        .await
        .map_err(|e| Refused(StatusCode::INTERNAL_SERVER_ERROR, "internal", e.to_string()))
}

fn limit(timeout_ms: u64) -> Option<Duration> {
    (timeout_ms > 0).then(|| Duration::from_millis(timeout_ms))
}

impl From<BodyError> for Refused {
    fn from(error: BodyError) -> Self {
        let status = match error {
            BodyError::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::Broken => StatusCode::BAD_REQUEST,
        };
        Self(status, "bad_request", error.to_string())
    }
}

impl From<StartError> for Refused {
    fn from(error: StartError) -> Self {
        let (status, code) = match error {
            StartError::NotFound(_) => (StatusCode::UNPROCESSABLE_ENTITY, "command_not_found"),
            StartError::NotExecutable { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "not_executable"),
            StartError::User(_) => (StatusCode::BAD_REQUEST, "unknown_user"),
            StartError::Cwd(_) => (StatusCode::BAD_REQUEST, "bad_cwd"),
            StartError::Malformed(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            StartError::Frozen => (StatusCode::CONFLICT, "frozen"),
            StartError::Resources(_) => (StatusCode::SERVICE_UNAVAILABLE, "out_of_resources"),
        };
        Self(status, code, chain(&error))
    }
}

impl From<EvalError> for Refused {
    fn from(error: EvalError) -> Self {
        let (status, code) = match error {
            EvalError::Start(PythonStartError::Start(error)) => return error.into(),
            EvalError::Start(PythonStartError::NoPython | PythonStartError::NoProgram(_)) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "no_python")
            }
            EvalError::Start(PythonStartError::NotReady(..)) => {
                (StatusCode::UNPROCESSABLE_ENTITY, "python_failed")
            }
            EvalError::Busy => (StatusCode::TOO_MANY_REQUESTS, "busy"),
            EvalError::Gone => (StatusCode::SERVICE_UNAVAILABLE, "interpreter_gone"),
        };
        Self(status, code, chain(&error))
    }
}

impl From<FreezeError> for Refused {
    fn from(error: FreezeError) -> Self {
        let (status, code) = match error {
            FreezeError::DidNotFreeze(_) => (StatusCode::CONFLICT, "guest_did_not_freeze"),
            FreezeError::Unsupported => (StatusCode::NOT_IMPLEMENTED, "freeze_unsupported"),
            FreezeError::Frozen => (StatusCode::CONFLICT, "frozen"),
            FreezeError::Secrets(_) => (StatusCode::INTERNAL_SERVER_ERROR, "secrets_failed"),
            FreezeError::Kernel(_) => (StatusCode::INTERNAL_SERVER_ERROR, "freeze_failed"),
        };
        Self(status, code, chain(&error))
    }
}

impl From<IdentityError> for Refused {
    fn from(error: IdentityError) -> Self {
        let (status, code) = match error {
            IdentityError::Request(_) => (StatusCode::BAD_REQUEST, "bad_request"),
            IdentityError::Step { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "identity_failed"),
            IdentityError::Hook { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "after_fork_failed"),
        };
        Self(status, code, chain(&error))
    }
}
