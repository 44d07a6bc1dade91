//! Images and kernels: made by clients, kept here.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use forkd_engine::Engine;
use forkd_protocol::names::{ImageName, KernelName, Tag};
use forkd_protocol::rest::{ErrorBody, ImageInfo, ImageOfSnapshot, KernelInfo};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::error::ApiError;
use crate::extract::{Json, Name, Query};
use crate::progress::{self, Done};
use crate::upload::{Counted, decompressed};

/// How an image was made.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Origin {
    /// Such as `debian bookworm: python3-minimal`
    #[serde(default)]
    origin: String,
}

/// All images
#[utoipa::path(get, path = "/v1/images", operation_id = "list_images", tag = "images", responses((status = 200, body = [ImageInfo])))]
pub(crate) async fn images(State(engine): State<Engine>) -> Result<axum::Json<Vec<ImageInfo>>, ApiError> {
    Ok(axum::Json(engine.images().await?))
}

/// One image
#[utoipa::path(
    get, path = "/v1/images/{name}", operation_id = "get_image", tag = "images", params(("name" = String, Path)),
    responses((status = 200, body = ImageInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn image(
    State(engine): State<Engine>,
    Name(name): Name<ImageName>,
) -> Result<axum::Json<ImageInfo>, ApiError> {
    Ok(axum::Json(engine.image(name).await?))
}

/// Keep an image
///
/// The body is an ext4 file system, raw or without its holes (docs/snapshot-format.md), compressed with zstd. With
/// `Accept: text/event-stream` the answer tells how much has been taken in, while the body is still being sent.
#[utoipa::path(
    put, path = "/v1/images/{name}", operation_id = "put_image", tag = "images", params(("name" = String, Path), Origin),
    request_body(content = Vec<u8>, content_type = "application/zstd"),
    responses((status = 201, body = ImageInfo), (status = 400, body = ErrorBody), (status = 507, body = ErrorBody))
)]
pub(crate) async fn put_image(
    State(engine): State<Engine>,
    Name(name): Name<ImageName>,
    Query(Origin { origin }): Query<Origin>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let (tell, progress) = progress::channel();
    let from = Counted::new(decompressed(body)?, tell);
    let taking = async move {
        let image = engine.put_image(name, origin, from).await?;
        Ok(Done::created(&image.name.clone(), image))
    };
    progress::answer(&headers, progress, taking).await
}

/// Make an image of what the disk of a snapshot holds
///
/// Without what was in memory: processes, files on tmpfs. The file system was in use, and its journal is replayed when it
/// is next mounted.
#[utoipa::path(
    post, path = "/v1/snapshots/{tag}/image", tag = "images", params(("tag" = String, Path)),
    request_body = ImageOfSnapshot,
    responses(
        (status = 201, body = ImageInfo), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn image_of_snapshot(
    State(engine): State<Engine>,
    Name(tag): Name<Tag>,
    Json(ImageOfSnapshot { name, origin }): Json<ImageOfSnapshot>,
) -> Result<(StatusCode, axum::Json<ImageInfo>), ApiError> {
    let image = engine.image_of_snapshot(tag, name.parse()?, origin).await?;
    Ok((StatusCode::CREATED, axum::Json(image)))
}

/// Remove an image; snapshots made from it keep what they need
#[utoipa::path(
    delete, path = "/v1/images/{name}", operation_id = "remove_image", tag = "images", params(("name" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn remove_image(
    State(engine): State<Engine>,
    Name(name): Name<ImageName>,
) -> Result<StatusCode, ApiError> {
    engine.remove_image(name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// All kernels
#[utoipa::path(get, path = "/v1/kernels", operation_id = "list_kernels", tag = "kernels", responses((status = 200, body = [KernelInfo])))]
pub(crate) async fn kernels(State(engine): State<Engine>) -> Result<axum::Json<Vec<KernelInfo>>, ApiError> {
    Ok(axum::Json(engine.kernels().await?))
}

/// Keep a kernel with its modules
///
/// The body is a tar of `vmlinuz` and `modules.cpio`, compressed with zstd.
#[utoipa::path(
    put, path = "/v1/kernels/{name}", operation_id = "put_kernel", tag = "kernels", params(("name" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/zstd"),
    responses((status = 201, body = KernelInfo), (status = 400, body = ErrorBody), (status = 507, body = ErrorBody))
)]
pub(crate) async fn put_kernel(
    State(engine): State<Engine>,
    Name(name): Name<KernelName>,
    body: Body,
) -> Result<(StatusCode, axum::Json<KernelInfo>), ApiError> {
    let kernel = engine.put_kernel(name, decompressed(body)?).await?;
    Ok((StatusCode::CREATED, axum::Json(kernel)))
}

/// Remove a kernel; snapshots made with it do not need it
#[utoipa::path(
    delete, path = "/v1/kernels/{name}", operation_id = "remove_kernel", tag = "kernels", params(("name" = String, Path)),
    responses((status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn remove_kernel(
    State(engine): State<Engine>,
    Name(name): Name<KernelName>,
) -> Result<StatusCode, ApiError> {
    engine.remove_kernel(name).await?;
    Ok(StatusCode::NO_CONTENT)
}
