//! Taking sandboxes to the disk, and continuing them.

use axum::extract::State;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ErrorBody, SandboxInfo};

use crate::error::ApiError;
use crate::extract::Name;
use crate::service::Service;

/// Take a running sandbox to the disk
///
/// Its memory is given back to the host; it keeps its id, its disk, its memory and its processes until it is resumed or
/// removed, also over a restart of the host. Where this fails it runs on.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/pause", operation_id = "pause_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it does not run, or its guest does not freeze"),
        (status = 500, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn pause(
    State(service): State<Service>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<SandboxInfo>, ApiError> {
    let paused = service.engine().pause(&id).await?;
    Ok(axum::Json(service.with_address(paused)))
}

/// Continue a paused sandbox
///
/// As who it was and where it stood. Where this fails it is paused still, and its processes have not run.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/resume", operation_id = "resume_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it is not paused"), (status = 501, body = ErrorBody),
        (status = 502, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn resume(
    State(service): State<Service>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<SandboxInfo>, ApiError> {
    Ok(axum::Json(resumed(&service, &id).await?))
}

/// Continues a sandbox where its tenant's quota has room for it.
pub(crate) async fn resumed(service: &Service, id: &SandboxId) -> Result<SandboxInfo, ApiError> {
    let engine = service.engine();
    let room = service.quotas().admit_resume(engine, &engine.sandbox(id)?)?;
    let resumed = engine.resume(id).await?;
    drop(room);
    Ok(service.with_address(resumed))
}
