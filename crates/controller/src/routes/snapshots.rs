//! Snapshots.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forkd_engine::Engine;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{CreateSnapshot, ErrorBody, RefreshSnapshot, RemoveSnapshot, SnapshotInfo};
use http::{HeaderMap, StatusCode};

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Json, Name, Query};
use crate::list::SnapshotFilter;
use crate::progress::{self, Done};
use crate::service::Service;

/// All snapshots that the caller may use, by tag
///
/// With `limit` in pages: the header `Link` says where the next one begins.
#[utoipa::path(
    get, path = "/v1/snapshots", operation_id = "list_snapshots", tag = "snapshots", params(SnapshotFilter),
    responses((status = 200, body = [SnapshotInfo]), (status = 400, body = ErrorBody))
)]
pub(crate) async fn list(
    State(engine): State<Engine>,
    caller: Caller,
    Query(filter): Query<SnapshotFilter>,
) -> Result<impl IntoResponse, ApiError> {
    let mut found = engine.snapshots().await?;
    found.retain(|info| caller.uses_snapshot(info));
    filter.page(found)
}

/// Boot an image, warm it up and freeze it
///
/// With `Accept: text/event-stream` the answer is a stream of `progress` events (text) that ends with one
/// `done` (a SnapshotInfo) or `error` (an ErrorBody with `status`). A client that leaves gives the work up, and
/// nothing of it is left.
#[utoipa::path(
    post, path = "/v1/snapshots", operation_id = "create_snapshot", tag = "snapshots", request_body = CreateSnapshot,
    responses(
        (status = 201, body = SnapshotInfo),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody, description = "no such image or kernel"),
        (status = 409, body = ErrorBody, description = "the tag is taken"),
        (status = 501, body = ErrorBody), (status = 502, body = ErrorBody), (status = 503, body = ErrorBody),
        (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn create(
    State(service): State<Service>,
    caller: Caller,
    headers: HeaderMap,
    Json(request): Json<CreateSnapshot>,
) -> Result<Response, ApiError> {
    let (tell, receiver) = progress::channel();
    let sender = tell.into_sender();
    if !caller.is_bound() {
        let engine = service.engine().clone();
        let making = async move { Ok(created(engine.create_snapshot(request, sender).await?)) };
        return progress::answer(&headers, receiver, making).await;
    }
    let tag: Tag = request.tag.parse()?;
    caller.check_new_tag(&tag)?;
    let making = async move {
        let tenant = caller.tenant;
        let making = service.engine().create_snapshot(request, sender);
        let made = service.making(tenant.as_deref(), &tag, making).await?;
        Ok(created(SnapshotInfo { tenant, ..made }))
    };
    progress::answer(&headers, receiver, making).await
}

/// Make a snapshot again
///
/// From the image and the warm-up that it records, with the newest kernel (or the one that is named), agent and monitor.
/// Where no other tag is asked for the new one takes that of the old one in the moment it is ready; children of the old
/// one keep what they need. Progress as for making one.
#[utoipa::path(
    post, path = "/v1/snapshots/{tag}/refresh", operation_id = "refresh_snapshot", tag = "snapshots", params(("tag" = String, Path)),
    request_body = RefreshSnapshot,
    responses(
        (status = 201, body = SnapshotInfo),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "it was taken of a sandbox; the new tag is taken; or another was quicker"),
        (status = 501, body = ErrorBody), (status = 502, body = ErrorBody), (status = 503, body = ErrorBody),
        (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn refresh(
    State(engine): State<Engine>,
    caller: Caller,
    Name(tag): Name<Tag>,
    headers: HeaderMap,
    Json(request): Json<RefreshSnapshot>,
) -> Result<Response, ApiError> {
    if caller.is_bound() && request.tag.as_deref().is_some_and(|new| new != tag.as_str()) {
        let text = "a token that is bound to a tenant or to tags refreshes a snapshot under its own tag only";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "tag_not_allowed", text));
    }
    let (tell, receiver) = progress::channel();
    let sender = tell.into_sender();
    let making = async move { Ok(created(engine.refresh_snapshot(tag, request, sender).await?)) };
    progress::answer(&headers, receiver, making).await
}

fn created(made: SnapshotInfo) -> Done<SnapshotInfo> {
    Done::created(&made.tag.clone(), made)
}

/// Remove a snapshot
///
/// Where others descend from it, it is refused with their names unless one of `cascade` and `force` is asked for.
#[utoipa::path(
    delete, path = "/v1/snapshots/{tag}", operation_id = "remove_snapshot", tag = "snapshots",
    params(
        ("tag" = String, Path),
        ("cascade" = Option<bool>, Query, description = "remove those that descend from it, too"),
        ("force" = Option<bool>, Query, description = "remove it alone; layers that others name stay")
    ),
    responses(
        (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "others descend from it, or it is being made")
    )
)]
pub(crate) async fn remove(
    State(engine): State<Engine>,
    Name(tag): Name<Tag>,
    Query(asked): Query<RemoveSnapshot>,
) -> Result<StatusCode, ApiError> {
    engine.remove_snapshot(tag, asked).await?;
    Ok(StatusCode::NO_CONTENT)
}
