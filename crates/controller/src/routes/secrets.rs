//! Secrets: giving them to sandboxes that run, and the line in the audit log where they go on in a snapshot.

use axum::extract::State;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{ErrorBody, GiveSecretsRequest, SandboxInfo};

use crate::access::Caller;
use crate::audit::Line;
use crate::clock::unix_now_ms;
use crate::error::ApiError;
use crate::extract::{Json, Name};
use crate::service::Service;

/// What stands in the audit log where secrets go on.
const CARRIED: &str = "secrets carried on";

/// Give a running sandbox secrets
///
/// Beside those that it has, or in their place. They are files in its `/run/secrets`, in memory, and in no snapshot; the
/// controller keeps the values in its memory alone. After a restart of the controller they have to be given again before
/// the sandbox can be branched; one that was paused then is continued without them.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/secrets", tag = "sandboxes", params(("id" = String, Path)),
    request_body = GiveSecretsRequest,
    responses(
        (status = 200, body = SandboxInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 502, body = ErrorBody)
    )
)]
pub(crate) async fn give(
    State(service): State<Service>,
    Name(id): Name<SandboxId>,
    Json(request): Json<GiveSecretsRequest>,
) -> Result<axum::Json<SandboxInfo>, ApiError> {
    let given = service.engine().give_secrets(&id, request.secrets).await?;
    Ok(axum::Json(service.with_address(given)))
}

/// Writes into the audit log that a snapshot of a sandbox with secrets is about to be made on request: before it is
/// made, so that no end of anybody loses the line.
pub(crate) async fn note_carried(service: &Service, caller: &Caller, id: &SandboxId) -> Result<(), ApiError> {
    let names = service.engine().secret_names(id)?;
    if names.is_empty() {
        return Ok(());
    }
    let line = Line {
        at_ms: unix_now_ms(),
        who: caller.name.clone(),
        tenant: caller.tenant.clone().filter(|tenant| !tenant.is_empty()),
        what: CARRIED.to_owned(),
        to: format!("/v1/sandboxes/{id}"),
        secrets: names,
        outcome: "asked".to_owned(),
        ..Line::default()
    };
    service.audit().add(line, true).await;
    Ok(())
}
