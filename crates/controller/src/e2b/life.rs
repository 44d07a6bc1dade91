//! What becomes of a sandbox.

use axum::extract::State;
use axum::response::IntoResponse;
use forkd_engine::Engine;
use http::StatusCode;
use serde::Deserialize;

use super::create::answer;
use super::error::E2bError;
use super::network::policy;
use super::shapes::{NetworkConfig, Sandbox, state_of};
use super::{Json, Of};

/// Seconds that one that is connected to lives at least, where the request does not say.
const TIMEOUT: u64 = 300;
/// Likewise, of a request of the first version.
const SHORT_TIMEOUT: u64 = 15;

pub(super) async fn kill(State(engine): State<Engine>, Of(id): Of) -> Result<StatusCode, E2bError> {
    // Removing one twice succeeds in our API; here it is to be told.
    engine.sandbox(&id)?;
    engine.kill(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
pub(super) struct Timeout {
    timeout: u64,
}

/// It lives this long from now on, be that longer or shorter than it had.
pub(super) async fn timeout(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(Timeout { timeout }): Json<Timeout>,
) -> Result<StatusCode, E2bError> {
    alive(&engine, &id)?;
    engine.set_timeout(&id, timeout, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
pub(super) struct Refresh {
    duration: Option<u64>,
}

pub(super) async fn refresh(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(Refresh { duration }): Json<Refresh>,
) -> Result<StatusCode, E2bError> {
    alive(&engine, &id)?;
    engine.set_timeout(&id, duration.unwrap_or(SHORT_TIMEOUT), true).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
pub(super) struct Pause {
    memory: Option<bool>,
}

pub(super) async fn pause(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(Pause { memory }): Json<Pause>,
) -> Result<StatusCode, E2bError> {
    if memory == Some(false) {
        return Err(E2bError::not_served("pausing without memory"));
    }
    alive(&engine, &id)?;
    engine.pause(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize)]
pub(super) struct Connect {
    timeout: Option<u64>,
    memory: Option<bool>,
}

/// 200 for one that ran, 201 for one that was continued.
pub(super) async fn connect(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(Connect { timeout, memory }): Json<Connect>,
) -> Result<impl IntoResponse, E2bError> {
    if memory == Some(false) {
        return Err(E2bError::not_served("continuing without memory"));
    }
    alive(&engine, &id)?;
    let connected = engine.connect(&id, Some(timeout.unwrap_or(TIMEOUT))).await?;
    let status = if connected.resumed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, axum::Json(answer(&engine, connected.sandbox)?)))
}

#[derive(Debug, Deserialize)]
pub(super) struct Resume {
    timeout: Option<u64>,
}

/// Of early clients: only one that is paused.
pub(super) async fn resume(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(Resume { timeout }): Json<Resume>,
) -> Result<(StatusCode, axum::Json<Sandbox>), E2bError> {
    if state_of(&engine.sandbox(&id)?) == Some("running") {
        return Err(E2bError::new(StatusCode::CONFLICT, format!("sandbox {id} runs already")));
    }
    let connected = engine.connect(&id, Some(timeout.unwrap_or(SHORT_TIMEOUT))).await?;
    Ok((StatusCode::CREATED, axum::Json(answer(&engine, connected.sandbox)?)))
}

/// What the sandbox may reach from now on.
pub(super) async fn network(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(network): Json<NetworkConfig>,
) -> Result<StatusCode, E2bError> {
    alive(&engine, &id)?;
    // All of it is replaced: what is not denied any more is open.
    let policy = policy(Some(&network), network.allow_internet_access)?;
    engine.set_network(&id, policy.unwrap_or_default()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// One that has ended is still listed by our API, for its reason; to clients it is gone.
fn alive(engine: &Engine, id: &forkd_protocol::names::SandboxId) -> Result<(), E2bError> {
    state_of(&engine.sandbox(id)?).map(drop).ok_or_else(|| E2bError::no_sandbox(id.as_str()))
}
