//! Making sandboxes.

use axum::extract::State;
use axum::response::IntoResponse;
use forkd_engine::{Access, Engine};
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{CreateSandboxes, OnTimeout, SandboxInfo, SandboxSettings};
use http::StatusCode;
use serde::{Deserialize, Serialize};

use super::error::E2bError;
use super::network::policy;
use super::shapes::{NewSandbox, Sandbox};
use super::{Caller, Json, Of};
use crate::access::{self, snapshot_of};
use crate::service::Service;

/// Seconds that a new sandbox lives where the request does not say.
const TIMEOUT: u64 = 300;
/// Likewise, of a request of the first version, and of a fork.
const SHORT_TIMEOUT: u64 = 15;
/// Most children of one fork.
const MAX_FORKS: u32 = 20;

pub(super) async fn create(
    State(service): State<Service>,
    Caller(caller): Caller,
    Json(new): Json<NewSandbox>,
) -> Result<impl IntoResponse, E2bError> {
    make(service, caller, new, TIMEOUT, true).await
}

/// The first version: a token is asked for where it is wanted.
pub(super) async fn early(
    State(service): State<Service>,
    Caller(caller): Caller,
    Json(new): Json<NewSandbox>,
) -> Result<impl IntoResponse, E2bError> {
    let secure = new.secure.unwrap_or_default();
    make(service, caller, new, SHORT_TIMEOUT, secure).await
}

async fn make(
    service: Service,
    caller: access::Caller,
    new: NewSandbox,
    timeout: u64,
    secure: bool,
) -> Result<impl IntoResponse, E2bError> {
    check(&new)?;
    let engine = service.engine();
    let tag: Tag = new.template_id.parse().map_err(|_| no_template(&new.template_id))?;
    snapshot_of(engine, &caller, &tag, false).await.map_err(|_| no_template(tag.as_str()))?;
    let memory = engine.snapshot(tag.clone()).await.map_err(|e| no_template_or(e, &tag))?.memory_mib;
    let room = service.quotas().admit_forks(engine, caller.tenant.as_deref(), 1, memory)?;
    let private = new.network.as_ref().and_then(|network| network.allow_public_traffic) == Some(false);
    let network = policy(new.network.as_ref(), new.allow_internet_access)?;
    let asked = CreateSandboxes {
        env: new.env_vars.unwrap_or_default(),
        settings: SandboxSettings {
            metadata: new.metadata.unwrap_or_default(),
            timeout_secs: Some(new.timeout.unwrap_or(timeout)),
            on_timeout: if new.auto_pause == Some(true) { OnTimeout::Pause } else { OnTimeout::Kill },
            auto_resume: new.auto_resume.is_some_and(|auto| auto.enabled),
            idle_timeout_secs: None,
        },
        network,
        tenant: caller.tenant,
        ..CreateSandboxes::of(tag.as_str())
    };
    let access = Access { open: !secure, traffic_token: private.then(String::new), ..Access::default() };
    let made = engine.fork_with_access(asked, access).await?;
    drop(room);
    let made = made.into_iter().next().ok_or_else(|| E2bError::bad_request("no sandbox was made"))?;
    Ok((StatusCode::CREATED, axum::Json(answer(engine, made)?)))
}

/// What was asked for and cannot be had is refused rather than forgotten.
fn check(new: &NewSandbox) -> Result<(), E2bError> {
    let given = |value: &Option<serde_json::Value>| value.as_ref().is_some_and(|value| !value.is_null());
    if given(&new.mcp) {
        return Err(E2bError::not_served("mcp"));
    }
    if given(&new.iam) {
        return Err(E2bError::not_served("iam"));
    }
    if new.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()) {
        return Err(E2bError::not_served("volumeMounts"));
    }
    Ok(())
}

fn no_template(id: &str) -> E2bError {
    E2bError::new(
        StatusCode::NOT_FOUND,
        format!("there is no template {id:?}: templates are the tags of `forkd images`"),
    )
}

fn no_template_or(e: forkd_engine::EngineError, tag: &Tag) -> E2bError {
    match e.class() {
        forkd_protocol::error::ErrorClass::NotFound => no_template(tag.as_str()),
        _ => e.into(),
    }
}

pub(super) fn answer(engine: &Engine, info: SandboxInfo) -> Result<Sandbox, E2bError> {
    let id: SandboxId = info.id.parse()?;
    Sandbox::of(engine, info, &id)
}

#[derive(Debug, Deserialize)]
pub(super) struct Fork {
    timeout: Option<u64>,
    count: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct Forked {
    sandbox: Sandbox,
}

/// All of the children, or none.
pub(super) async fn fork(
    State(engine): State<Engine>,
    Of(id): Of,
    Json(Fork { timeout, count }): Json<Fork>,
) -> Result<impl IntoResponse, E2bError> {
    let count = count.unwrap_or(1);
    if !(1..=MAX_FORKS).contains(&count) {
        return Err(E2bError::bad_request(format!("count is from 1 to {MAX_FORKS}")));
    }
    let children = engine.fork_sandbox(&id, count, timeout.unwrap_or(SHORT_TIMEOUT)).await?;
    let forked: Result<Vec<_>, _> =
        children.into_iter().map(|info| answer(&engine, info).map(|sandbox| Forked { sandbox })).collect();
    Ok((StatusCode::CREATED, axum::Json(forked?)))
}
