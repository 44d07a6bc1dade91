//! Snapshots as chains: what one consists of, flattening, cleaning up, checking.

use axum::extract::State;
use axum::response::Response;
use forkd_engine::Engine;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{
    CollectGarbage, CompactSnapshot, ErrorBody, GarbageReport, SnapshotInfo, SnapshotInfoDetail,
    VerifyReport, VerifySnapshots,
};
use http::HeaderMap;

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, Name, Query};
use crate::progress::{self, Done};
use crate::service::Service;

/// Everything about a snapshot
#[utoipa::path(
    get, path = "/v1/snapshots/{tag}/info", operation_id = "snapshot_info", tag = "snapshots", params(("tag" = String, Path)),
    responses((status = 200, body = SnapshotInfoDetail), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn info(
    State(engine): State<Engine>,
    Name(tag): Name<Tag>,
) -> Result<axum::Json<SnapshotInfoDetail>, ApiError> {
    Ok(axum::Json(engine.snapshot_detail(tag).await?))
}

/// Make a flat snapshot of one that lies on others
///
/// It restores to the same machine and needs nothing of the chain. With `Accept: text/event-stream` as for making one.
#[utoipa::path(
    post, path = "/v1/snapshots/{tag}/compact", operation_id = "compact_snapshot", tag = "snapshots", params(("tag" = String, Path)),
    request_body = CompactSnapshot,
    responses(
        (status = 201, body = SnapshotInfo),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "the tag is taken"), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn compact(
    State(service): State<Service>,
    caller: Caller,
    Name(tag): Name<Tag>,
    headers: HeaderMap,
    Json(request): Json<CompactSnapshot>,
) -> Result<Response, ApiError> {
    let to: Tag = request.to.parse()?;
    caller.check_new_tag(&to)?;
    let (tell, progress) = progress::channel();
    let making = async move {
        tell.line(format!("writing {to}, a flat snapshot of {tag}"));
        let making = service.engine().compact_snapshot(tag, request);
        let made = service.making(caller.tenant.as_deref(), &to, making).await?;
        Ok(Done::created(to.as_str(), SnapshotInfo { tenant: caller.tenant, ..made }))
    };
    progress::answer(&headers, progress, making).await
}

/// Remove content that nothing names
#[utoipa::path(
    post, path = "/v1/gc", operation_id = "collect_garbage", tag = "store", params(("dry_run" = Option<bool>, Query, description = "only say what would go")),
    responses((status = 200, body = GarbageReport), (status = 400, body = ErrorBody))
)]
pub(crate) async fn gc(
    State(engine): State<Engine>,
    Query(asked): Query<CollectGarbage>,
) -> Result<axum::Json<GarbageReport>, ApiError> {
    Ok(axum::Json(engine.collect_garbage(asked.dry_run).await?))
}

/// Hash stored content again
///
/// Damage is no failure of the request: it is listed.
#[utoipa::path(
    post, path = "/v1/verify", operation_id = "verify_store", tag = "store", request_body = VerifySnapshots,
    responses((status = 200, body = VerifyReport), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn verify(
    State(engine): State<Engine>,
    Json(request): Json<VerifySnapshots>,
) -> Result<axum::Json<VerifyReport>, ApiError> {
    Ok(axum::Json(engine.verify_snapshots(request).await?))
}
