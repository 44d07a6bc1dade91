//! Sandboxes, and what is done in them.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forkd_engine::{Engine, EngineError};
use forkd_protocol::names::{SandboxId, Tag};
use forkd_protocol::rest::{
    AllStats, BranchRequest, CreateSandboxes, ErrorBody, EvalRequest, EvalResponse, ExecRequest,
    ExecResponse, PingResponse, SandboxInfo, SandboxStats, SnapshotInfo,
};
use http::{HeaderMap, StatusCode, header};

use crate::access::{Caller, Promise, sandbox_of, snapshot_of};
use crate::audit::Made;
use crate::claims::branch_tag;
use crate::error::ApiError;
use crate::extract::{Json, Name, Query};
use crate::list::SandboxFilter;
use crate::progress::{self, Done};
use crate::routes::secrets::note_carried;
use crate::service::Service;

/// All sandboxes that the caller may see, oldest first
///
/// With `limit` in pages: the header `Link` says where the next one begins.
#[utoipa::path(
    get, path = "/v1/sandboxes", operation_id = "list_sandboxes", tag = "sandboxes", params(SandboxFilter),
    responses((status = 200, body = [SandboxInfo]), (status = 400, body = ErrorBody))
)]
pub(crate) async fn list(
    State(service): State<Service>,
    caller: Caller,
    Query(filter): Query<SandboxFilter>,
) -> Result<impl IntoResponse, ApiError> {
    let mut found = service.engine().sandboxes();
    found.retain(|info| caller.sees(info));
    filter.page(found, &|info| service.with_address(info))
}

/// Fork children from a snapshot
///
/// All of them, or none: where some fail, `failures` says which and why, and nothing of them is left. Likewise
/// where the client leaves before the answer.
#[utoipa::path(
    post, path = "/v1/sandboxes", operation_id = "create_sandboxes", tag = "sandboxes", request_body = CreateSandboxes,
    responses(
        (status = 201, body = [SandboxInfo]),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody, description = "no such snapshot"),
        (status = 409, body = ErrorBody), (status = 501, body = ErrorBody), (status = 502, body = ErrorBody),
        (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn create(
    State(service): State<Service>,
    caller: Caller,
    Json(request): Json<CreateSandboxes>,
) -> Result<impl IntoResponse, ApiError> {
    let children = forked(&service, &caller, request).await?;
    let children: Vec<_> = children.into_iter().map(|child| service.with_address(child)).collect();
    let made = axum::Extension(Made(children.iter().map(|child| child.id.clone()).collect()));
    Ok((StatusCode::CREATED, made, axum::Json(children)))
}

/// Forks for a caller what that one may have.
pub(crate) async fn forked(
    service: &Service,
    caller: &Caller,
    mut asked: CreateSandboxes,
) -> Result<Vec<SandboxInfo>, ApiError> {
    asked.tenant = caller.tenant_of_new(asked.tenant)?;
    check_published(caller, &asked)?;
    let mut carrying = None;
    if caller.is_bound()
        && let Some(source) = asked.from_sandbox.take().filter(|_| asked.snapshot_tag.is_empty())
    {
        let with_secrets = std::mem::take(&mut asked.with_secrets);
        let source = source.parse()?;
        let request = BranchRequest { with_secrets, ..BranchRequest::default() };
        asked.snapshot_tag = branched(service, caller, &source, request).await?.tag;
        carrying = with_secrets.then_some(source);
    } else if let Some(source) = asked.from_sandbox.as_deref().filter(|_| asked.with_secrets) {
        note_carried(service, caller, &source.parse()?).await?;
    }
    let room = room(service, caller, &asked).await?;
    let engine = service.engine();
    let children = match &carrying {
        Some(source) => engine.fork_inheriting(asked, source).await?,
        None => engine.fork(asked).await?,
    };
    drop(room);
    Ok(children)
}

/// Addresses that other computers reach are the operator's to give.
fn check_published(caller: &Caller, asked: &CreateSandboxes) -> Result<(), ApiError> {
    let outside = asked.publish.iter().find(|port| !port.host.ip().is_loopback());
    match outside.filter(|_| caller.is_bound()) {
        None => Ok(()),
        Some(port) => {
            let text = format!("this token is bound, and publishes on loopback only, not at {}", port.host);
            Err(ApiError::new(StatusCode::FORBIDDEN, "token_is_bound", text))
        }
    }
}

/// The children's room in their tenant's quota; the snapshot has to be one that the caller may use.
async fn room(
    service: &Service,
    caller: &Caller,
    asked: &CreateSandboxes,
) -> Result<Option<Promise>, ApiError> {
    if !caller.is_bound() && asked.tenant.is_none() {
        return Ok(None);
    }
    let tag: Tag = asked.snapshot_tag.parse()?;
    snapshot_of(service.engine(), caller, &tag, false).await?;
    let memory = service.engine().snapshot(tag).await?.memory_mib;
    let n = u64::from(asked.n);
    service.quotas().admit_forks(service.engine(), asked.tenant.as_deref(), n, memory).map(Some)
}

/// One sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}", operation_id = "get_sandbox", tag = "sandboxes", params(("id" = String, Path)),
    responses((status = 200, body = SandboxInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn get(
    State(service): State<Service>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<SandboxInfo>, ApiError> {
    Ok(axum::Json(service.with_address(service.engine().sandbox(&id)?)))
}

/// End a sandbox
#[utoipa::path(
    delete, path = "/v1/sandboxes/{id}", operation_id = "kill_sandbox", tag = "sandboxes", params(("id" = String, Path)),
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
/// 202 where the request does not wait: the snapshot is `writing` until it is `ready` or `failed`. With
/// `Accept: text/event-stream` as for making one; a client that leaves changes nothing.
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/branch", operation_id = "branch_sandbox", tag = "sandboxes", params(("id" = String, Path)), request_body = BranchRequest,
    responses(
        (status = 201, body = SnapshotInfo), (status = 202, body = SnapshotInfo),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 500, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn branch(
    State(service): State<Service>,
    caller: Caller,
    Name(id): Name<SandboxId>,
    headers: HeaderMap,
    Json(request): Json<BranchRequest>,
) -> Result<Response, ApiError> {
    let (tell, progress) = progress::channel();
    let making = async move {
        tell.line(format!("branching {id}"));
        let made = branched(&service, &caller, &id, request).await?;
        let status = if made.status == "writing" { StatusCode::ACCEPTED } else { StatusCode::CREATED };
        Ok(Done { status, made: vec![made.tag.clone()], body: made })
    };
    progress::answer(&headers, progress, making).await
}

/// Branches a sandbox that the caller may see. The snapshot is whose the sandbox is.
pub(crate) async fn branched(
    service: &Service,
    caller: &Caller,
    id: &SandboxId,
    mut asked: BranchRequest,
) -> Result<SnapshotInfo, ApiError> {
    let tenant = sandbox_of(service.engine(), caller, id)?.tenant;
    if asked.with_secrets {
        note_carried(service, caller, id).await?;
    }
    if tenant.is_none() && !caller.is_bound() {
        return Ok(service.engine().branch(id, asked).await?);
    }
    let named = asked.tag.as_deref().filter(|tag| !tag.is_empty());
    let tag = named.map_or_else(|| branch_tag(id), |tag| Ok(tag.parse()?))?;
    caller.check_new_tag(&tag)?;
    asked.tag = Some(tag.to_string());
    // Beside the request: a branch goes on where its client leaves, and so must the claim.
    let (service, id, owner) = (service.clone(), id.clone(), tenant.clone());
    let making = tokio::spawn(async move {
        service.making(owner.as_deref(), &tag, service.engine().branch(&id, asked)).await
    });
    let made = making.await.map_err(|_| ApiError::from(EngineError::Broken))??;
    Ok(SnapshotInfo { tenant, ..made })
}

/// Run a command to its end
#[utoipa::path(
    post, path = "/v1/sandboxes/{id}/exec", operation_id = "exec_in_sandbox", tag = "sandboxes", params(("id" = String, Path)), request_body = ExecRequest,
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
    post, path = "/v1/sandboxes/{id}/eval", operation_id = "eval_in_sandbox", tag = "sandboxes", params(("id" = String, Path)), request_body = EvalRequest,
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
    post, path = "/v1/sandboxes/{id}/ping", operation_id = "ping_sandbox", tag = "sandboxes", params(("id" = String, Path)),
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
    get, path = "/v1/sandboxes/{id}/logs", operation_id = "sandbox_logs", tag = "sandboxes", params(("id" = String, Path)),
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
#[utoipa::path(get, path = "/v1/stats", operation_id = "all_stats", tag = "sandboxes", responses((status = 200, body = AllStats)))]
pub(crate) async fn all_stats(State(engine): State<Engine>) -> axum::Json<AllStats> {
    axum::Json(engine.all_stats().await)
}

/// What it uses right now
#[utoipa::path(
    get, path = "/v1/sandboxes/{id}/stats", operation_id = "sandbox_stats", tag = "sandboxes", params(("id" = String, Path)),
    responses(
        (status = 200, body = SandboxStats), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it does not run")
    )
)]
pub(crate) async fn stats(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
) -> Result<axum::Json<SandboxStats>, ApiError> {
    Ok(axum::Json(engine.stats(&id).await?))
}
