//! The host below the controller.

use axum::extract::State;
use forkd_engine::Engine;
use forkd_protocol::rest::{ErrorBody, HostCounts};

use crate::error::ApiError;

/// What is on the host that sandboxes could leave behind
///
/// Counted anew for each call, which takes a while where there are many processes.
#[utoipa::path(
    get, path = "/v1/host", operation_id = "host_counts", tag = "controller",
    responses((status = 200, body = HostCounts), (status = 500, body = ErrorBody))
)]
pub(crate) async fn counts(State(engine): State<Engine>) -> Result<axum::Json<HostCounts>, ApiError> {
    Ok(axum::Json(engine.host_counts().await?))
}
