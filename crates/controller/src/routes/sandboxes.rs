//! Sandboxes, and what is done in them.

use axum::extract::State;
use axum::response::IntoResponse;
use forkd_engine::Engine;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{
    AllStats, BranchRequest, CreateSandboxes, ErrorBody, EvalRequest, EvalResponse, ExecRequest,
    ExecResponse, PingResponse, SandboxInfo, SandboxStats, SnapshotInfo,
};
use http::{StatusCode, header};

use crate::error::ApiError;
use crate::extract::{Json, Name};

/// All sandboxes
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes", responses((status = 200, body = [SandboxInfo])))]
pub(crate) async fn list(State(engine): State<Engine>) -> axum::Json<Vec<SandboxInfo>> {
    axum::Json(engine.sandboxes())
}

/// Fork children from a snapshot
///
/// All of them, or none: where some fail, `failures` says which and why, and nothing of them is left. Likewise
/// where the client leaves before the answer.
#[utoipa::path(
    post, path = "/v1/sandboxes", tag = "sandboxes", request_body = CreateSandboxes,
    responses(
        (status = 201, body = [SandboxInfo]),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody, description = "no such snapshot"),
        (status = 409, body = ErrorBody), (status = 501, body = ErrorBody), (status = 502, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn create(
    State(engine): State<Engine>,
    Json(request): Json<CreateSandboxes>,
) -> Result<impl IntoResponse, ApiError> {
    let children = engine.fork(request).await?;
    Ok((StatusCode::CREATED, axum::Json(children)))
}

/// One sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = SandboxInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn get(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<SandboxInfo>, ApiError> {
    Ok(axum::Json(engine.sandbox(&id)?))
}

/// End a sandbox
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn kill(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<StatusCode, ApiError> {
    engine.kill(&id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Make a snapshot of a running sandbox, which runs on
///
/// 202 where the request does not wait: the snapshot is `writing` until it is `ready` or `failed`.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/branch", tag = "sandboxes", params(("id" = String, Path)), request_body = BranchRequest,
    responses(
        (status = 201, body = SnapshotInfo), (status = 202, body = SnapshotInfo),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 500, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn branch(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
    Json(request): Json<BranchRequest>,
) -> Result<impl IntoResponse, ApiError> {
    let made = engine.branch(&id, request).await?;
    let status = if made.status == "writing" { StatusCode::ACCEPTED } else { StatusCode::CREATED };
    Ok((status, axum::Json(made)))
}

/// Run a command to its end
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec", tag = "sandboxes", params(("id" = String, Path)), request_body = ExecRequest,
    responses(
        (status = 200, body = ExecResponse),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 502, body = ErrorBody)
    )
)]
pub(crate) async fn exec(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
    Json(request): Json<ExecRequest>,
) -> Result<axum::Json<ExecResponse>, ApiError> {
    Ok(axum::Json(engine.exec(&id, request).await?))
}

/// Evaluate in the warm interpreter
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/eval", tag = "sandboxes", params(("id" = String, Path)), request_body = EvalRequest,
    responses(
        (status = 200, body = EvalResponse, description = "also where the code raised an error"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 502, body = ErrorBody)
    )
)]
pub(crate) async fn eval(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
    Json(request): Json<EvalRequest>,
) -> Result<axum::Json<EvalResponse>, ApiError> {
    Ok(axum::Json(engine.eval(&id, request).await?))
}

/// Ask the agent whether it answers
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/ping", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = PingResponse),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 502, body = ErrorBody)
    )
)]
pub(crate) async fn ping(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<PingResponse>, ApiError> {
    Ok(axum::Json(engine.ping(&id).await?))
}

/// What the guest wrote on its console
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/logs", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, content_type = "text/plain", body = String),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)
    )
)]
pub(crate) async fn logs(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<impl IntoResponse, ApiError> {
    let console = engine.console(&id).await?;
    // Text of a guest: a browser must neither guess another type nor run it.
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, console))
}

/// What all of them use right now, and what there is room for
#[utoipa::path(get, path = "/v1/stats", tag = "sandboxes", responses((status = 200, body = AllStats)))]
pub(crate) async fn all_stats(State(engine): State<Engine>) -> axum::Json<AllStats> {
    axum::Json(engine.all_stats().await)
}

/// What it uses right now
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/stats", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = SandboxStats), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn stats(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<SandboxStats>, ApiError> {
    Ok(axum::Json(engine.stats(&id).await?))
}
