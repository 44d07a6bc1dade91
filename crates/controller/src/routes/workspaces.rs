//! Workspaces: sandboxes with a name, which are suspended and resumed under it, also over a restart of the host.

use axum::extract::State;
use axum::response::IntoResponse;
use forkd_engine::EngineError;
use forkd_protocol::names::{SandboxId, WorkspaceName};
use forkd_protocol::rest::{
    CreateSandboxes, CreateWorkspace, ErrorBody, SandboxInfo, SuspendWorkspace, WorkspaceInfo,
};
use forkd_store::{StoreError, WorkspaceRow};
use http::StatusCode;

use super::pause::resumed;
use super::sandboxes::forked;
use crate::access::Caller;
use crate::audit::Made;
use crate::clock::unix_now;
use crate::error::ApiError;
use crate::extract::{Json, MaybeJson, Name, Query};
use crate::list::WorkspaceFilter;
use crate::service::{Service, blocking};

/// All workspaces that the caller may see, by name
///
/// With `limit` in pages: the header `Link` says where the next one begins.
#[utoipa::path(
    get, path = "/v1/workspaces", operation_id = "list_workspaces", tag = "workspaces", params(WorkspaceFilter),
    responses((status = 200, body = [WorkspaceInfo]), (status = 400, body = ErrorBody))
)]
pub(crate) async fn list(
    State(service): State<Service>,
    caller: Caller,
    Query(filter): Query<WorkspaceFilter>,
) -> Result<impl IntoResponse, ApiError> {
    let store = service.engine().store().clone();
    let mut rows = blocking(move || store.workspaces()).await??;
    rows.retain(|row| caller.reaches(owner_of(row), &row.snapshot_tag));
    filter.page(rows.iter().map(|row| info_of(&service, row)).collect())
}

/// Make a workspace: fork a sandbox that has a name
#[utoipa::path(
    post, path = "/v1/workspaces", operation_id = "create_workspace", tag = "workspaces", request_body = CreateWorkspace,
    responses(
        (status = 201, body = WorkspaceInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "the name is taken"), (status = 501, body = ErrorBody),
        (status = 502, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn create(
    State(service): State<Service>,
    caller: Caller,
    Json(asked): Json<CreateWorkspace>,
) -> Result<impl IntoResponse, ApiError> {
    let name: WorkspaceName = asked.name.parse()?;
    let tenant = caller.tenant.clone().unwrap_or_default();
    if there_is(&service, &tenant, &name).await? {
        let text = format!("there is a workspace {:?} already", name.as_str());
        return Err(ApiError::new(StatusCode::CONFLICT, "name_taken", text));
    }
    let memory_limit_mib = asked.memory_limit_mib;
    let fork = CreateSandboxes { memory_limit_mib, ..CreateSandboxes::of(asked.snapshot_tag.clone()) };
    let child = forked(&service, &caller, fork).await?.into_iter().next();
    let child = child.ok_or(EngineError::Broken)?;
    let now = unix_now();
    let row = WorkspaceRow {
        name: name.to_string(),
        tenant,
        id: format!("ws-{now:x}-{:08x}", rand::random::<u32>()),
        snapshot_tag: asked.snapshot_tag,
        sandbox: child.id,
        created_at_unix: now,
        last_active_unix: now,
    };
    // Beside this future: no child is left without its name where the client leaves.
    let naming = tokio::spawn(keep(service, row));
    let info = naming.await.map_err(|_| EngineError::Broken)??;
    let made = info.live_sandbox_id.iter().chain([&info.id]).cloned().collect();
    Ok((StatusCode::CREATED, axum::Extension(Made(made)), axum::Json(info)))
}

/// Keeps a workspace, or ends its child where another request was faster.
async fn keep(service: Service, row: WorkspaceRow) -> Result<WorkspaceInfo, ApiError> {
    let (store, kept) = (service.engine().store().clone(), row.clone());
    if let Err(e) = blocking(move || store.put_workspace(&kept)).await? {
        service.engine().kill(&row.sandbox.parse()?).await?;
        return Err(e.into());
    }
    Ok(info_of(&service, &row))
}

/// One workspace
#[utoipa::path(
    get, path = "/v1/workspaces/{name}", operation_id = "get_workspace", tag = "workspaces", params(("name" = String, Path)),
    responses((status = 200, body = WorkspaceInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn get(
    State(service): State<Service>,
    caller: Caller,
    Name(name): Name<WorkspaceName>,
) -> Result<axum::Json<WorkspaceInfo>, ApiError> {
    let row = find(&service, &caller, &name).await?;
    Ok(axum::Json(info_of(&service, &row)))
}

/// Remove a workspace, and its sandbox with all that is in it
#[utoipa::path(
    delete, path = "/v1/workspaces/{name}", operation_id = "remove_workspace", tag = "workspaces", params(("name" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn remove(
    State(service): State<Service>,
    caller: Caller,
    Name(name): Name<WorkspaceName>,
) -> Result<StatusCode, ApiError> {
    let row = find(&service, &caller, &name).await?;
    if let Some(sandbox) = sandbox_of(&service, &row) {
        service.engine().kill(&sandbox.id.parse()?).await?;
    }
    let store = service.engine().store().clone();
    blocking(move || store.remove_workspace(&row)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Suspend a workspace: its sandbox is taken to the disk
#[utoipa::path(
    post, path = "/v1/workspaces/{name}/suspend", operation_id = "suspend_workspace", tag = "workspaces", params(("name" = String, Path)),
    request_body = Option<SuspendWorkspace>,
    responses(
        (status = 200, body = WorkspaceInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it does not run, or its guest does not freeze"),
        (status = 500, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn suspend(
    State(service): State<Service>,
    caller: Caller,
    Name(name): Name<WorkspaceName>,
    MaybeJson(SuspendWorkspace { .. }): MaybeJson<SuspendWorkspace>,
) -> Result<axum::Json<WorkspaceInfo>, ApiError> {
    let (row, id) = alive(&service, &caller, &name).await?;
    service.engine().pause(&id).await?;
    touched(&service, row).await
}

/// Resume a suspended workspace
#[utoipa::path(
    post, path = "/v1/workspaces/{name}/resume", operation_id = "resume_workspace", tag = "workspaces", params(("name" = String, Path)),
    responses(
        (status = 200, body = WorkspaceInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it is not suspended"), (status = 501, body = ErrorBody),
        (status = 502, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn resume(
    State(service): State<Service>,
    caller: Caller,
    Name(name): Name<WorkspaceName>,
) -> Result<axum::Json<WorkspaceInfo>, ApiError> {
    let (row, id) = alive(&service, &caller, &name).await?;
    resumed(&service, &id).await?;
    touched(&service, row).await
}

/// A workspace that the caller may see; to others it is not there.
async fn find(service: &Service, caller: &Caller, name: &WorkspaceName) -> Result<WorkspaceRow, ApiError> {
    let (store, tenant, asked) =
        (service.engine().store().clone(), caller.tenant.clone().unwrap_or_default(), name.clone());
    let row = blocking(move || store.workspace(&tenant, asked.as_str())).await??;
    if caller.reaches(owner_of(&row), &row.snapshot_tag) {
        return Ok(row);
    }
    Err(ApiError::not_found(format!("there is no workspace {:?}", name.as_str())))
}

/// Whether a name is taken, also by one that the caller may not see.
async fn there_is(service: &Service, tenant: &str, name: &WorkspaceName) -> Result<bool, ApiError> {
    let (store, tenant, name) = (service.engine().store().clone(), tenant.to_owned(), name.clone());
    match blocking(move || store.workspace(&tenant, name.as_str())).await? {
        Ok(_) => Ok(true),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Whose it is.
fn owner_of(row: &WorkspaceRow) -> Option<&str> {
    Some(row.tenant.as_str()).filter(|tenant| !tenant.is_empty())
}

/// A workspace whose sandbox is there.
async fn alive(
    service: &Service,
    caller: &Caller,
    name: &WorkspaceName,
) -> Result<(WorkspaceRow, SandboxId), ApiError> {
    let row = find(service, caller, name).await?;
    let Some(sandbox) = sandbox_of(service, &row) else {
        let text = format!("the sandbox of the workspace {:?} is gone; remove it and make it anew", row.name);
        return Err(ApiError::new(StatusCode::CONFLICT, "stale", text));
    };
    Ok((row, sandbox.id.parse()?))
}

async fn touched(service: &Service, mut row: WorkspaceRow) -> Result<axum::Json<WorkspaceInfo>, ApiError> {
    row.last_active_unix = unix_now();
    let (store, kept) = (service.engine().store().clone(), row.clone());
    blocking(move || store.touch_workspace(&kept, kept.last_active_unix)).await??;
    Ok(axum::Json(info_of(service, &row)))
}

/// Its sandbox, where that has not ended.
fn sandbox_of(service: &Service, row: &WorkspaceRow) -> Option<SandboxInfo> {
    let id: SandboxId = row.sandbox.parse().ok()?;
    service.engine().sandbox(&id).ok().filter(|info| info.ended.is_none())
}

fn info_of(service: &Service, row: &WorkspaceRow) -> WorkspaceInfo {
    let sandbox = sandbox_of(service, row);
    let status = match sandbox.as_ref().map(|info| info.state.as_str()) {
        None => "stale",
        Some("paused" | "pausing") => "suspended",
        Some(_) => "running",
    };
    WorkspaceInfo {
        id: row.id.clone(),
        name: row.name.clone(),
        tenant: owner_of(row).map(str::to_owned),
        source_snapshot_tag: row.snapshot_tag.clone(),
        current_state_tag: None,
        status: status.to_owned(),
        live_sandbox_id: sandbox.as_ref().map(|info| info.id.clone()),
        created_at_unix: row.created_at_unix,
        last_active_unix: row.last_active_unix,
        last_branch_memory_path: sandbox.and_then(|info| info.last_branch_memory_path),
    }
}
