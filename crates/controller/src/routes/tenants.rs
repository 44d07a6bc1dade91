//! Tenants: what they may have, and what they have.

use axum::extract::State;
use forkd_protocol::names::TenantName;
use forkd_protocol::rest::{ErrorBody, MAX_QUOTA, Quota, TenantInfo};
use http::StatusCode;

use crate::error::ApiError;
use crate::extract::{Json, Name};
use crate::service::{Service, blocking};

/// All tenants with a quota or anything else
#[utoipa::path(get, path = "/v1/tenants", operation_id = "list_tenants", tag = "access", responses((status = 200, body = [TenantInfo])))]
pub(crate) async fn list(State(service): State<Service>) -> Result<axum::Json<Vec<TenantInfo>>, ApiError> {
    let snapshots = service.engine().snapshots().await?;
    Ok(axum::Json(service.quotas().infos(&service.engine().sandboxes(), &snapshots)))
}

/// Set what a tenant may have; what is left out has no bound
#[utoipa::path(
    put, path = "/v1/tenants/{name}", operation_id = "set_tenant", tag = "access", params(("name" = String, Path)), request_body = Quota,
    responses((status = 204), (status = 400, body = ErrorBody), (status = 507, body = ErrorBody))
)]
pub(crate) async fn set(
    State(service): State<Service>,
    Name(name): Name<TenantName>,
    Json(quota): Json<Quota>,
) -> Result<StatusCode, ApiError> {
    let Quota { sandboxes, memory_mib, disk_mib, forks_per_second } = quota;
    let bounds = [sandboxes, memory_mib, disk_mib, forks_per_second];
    if bounds.iter().flatten().any(|bound| *bound > MAX_QUOTA) {
        return Err(ApiError::bad_request(format!("a bound is at most {MAX_QUOTA}")));
    }
    let (store, tenant) = (service.engine().store().clone(), name.clone());
    blocking(move || store.put_tenant(&tenant, &quota)).await??;
    service.quotas().set(name.as_str(), quota);
    Ok(StatusCode::NO_CONTENT)
}

/// Remove a tenant's bounds; what it has stays
#[utoipa::path(
    delete, path = "/v1/tenants/{name}", operation_id = "remove_tenant", tag = "access", params(("name" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody))
)]
pub(crate) async fn remove(
    State(service): State<Service>,
    Name(name): Name<TenantName>,
) -> Result<StatusCode, ApiError> {
    let (store, tenant) = (service.engine().store().clone(), name.clone());
    blocking(move || store.remove_tenant(&tenant)).await??;
    service.quotas().set(name.as_str(), Quota::default());
    Ok(StatusCode::NO_CONTENT)
}
