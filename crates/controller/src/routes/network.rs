//! What may leave a sandbox.

use axum::extract::State;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ErrorBody, NetworkPolicy, SandboxInfo};

use crate::error::ApiError;
use crate::extract::{AnyJson, Name};
use crate::service::Service;

/// Change what may leave a sandbox
///
/// From one instant to the next the new policy holds, also for connections that are open; where that fails the old one
/// holds still. A paused sandbox has it once it is resumed. The policy is a word, a list or an object, as docs/network.md
/// tells.
#[utoipa::path(
    put, path = "/v1/sandboxes/{id}/network", tag = "sandboxes", params(("id" = String, Path)),
    request_body = NetworkPolicy,
    responses(
        (status = 200, body = SandboxInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it does not run, or was started without a network"),
        (status = 500, body = ErrorBody)
    )
)]
pub(crate) async fn set(
    State(service): State<Service>,
    Name(id): Name<SandboxId>,
    AnyJson(policy): AnyJson<NetworkPolicy>,
) -> Result<axum::Json<SandboxInfo>, ApiError> {
    let set = service.engine().set_network(&id, policy).await?;
    Ok(axum::Json(service.with_address(set)))
}
