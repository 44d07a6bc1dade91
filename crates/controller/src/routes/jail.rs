//! What keeps a sandbox apart from its host.

use axum::extract::State;
use forkd_engine::Engine;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ErrorBody, JailReport};

use crate::error::ApiError;
use crate::extract::Name;

/// How its monitor is jailed right now, as the kernel tells it
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/jail", operation_id = "sandbox_jail", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = JailReport), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it does not run")
    )
)]
pub(crate) async fn get(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<JailReport>, ApiError> {
    Ok(axum::Json(engine.jail(&id).await?))
}
