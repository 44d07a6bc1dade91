//! Snapshots that leave and arrive, object by object (docs/snapshot-format.md).

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forkd_engine::Engine;
use forkd_protocol::digest::Digest;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{Bundle, ErrorBody, ImportStatus, Imported};
use http::{HeaderMap, StatusCode, header};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::error::ApiError;
use crate::extract::{Name, Names, Query, Whole};
use crate::progress::{self, Done};

/// What of a snapshot.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Thin {
    /// Image and kernel are only named: the other side has to have the image
    #[serde(default)]
    thin: bool,
}

/// What it is to be called.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Called {
    /// Tag of the snapshot here, where not as it was
    #[serde(default)]
    tag: Option<String>,
}

impl Called {
    fn tag(&self) -> Result<Option<Tag>, ApiError> {
        Ok(self.tag.as_deref().map(str::parse).transpose()?)
    }
}

/// Everything that a snapshot needs, by content
///
/// The bytes of the answer are what the bundle is called by: keep them as they are.
#[utoipa::path(
    get, path = "/v1/snapshots/{tag}/export", operation_id = "export_snapshot", tag = "bundles", params(("tag" = String, Path), Thin),
    responses((status = 200, body = Bundle), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody))
)]
pub(crate) async fn export(
    State(engine): State<Engine>,
    Name(tag): Name<Tag>,
    Query(Thin { thin }): Query<Thin>,
) -> Result<impl IntoResponse, ApiError> {
    Ok(([(header::CONTENT_TYPE, "application/json")], engine.export(tag, thin).await?))
}

/// One object of a snapshot, compressed with zstd
#[utoipa::path(
    get, path = "/v1/snapshots/{tag}/objects/{hash}", operation_id = "snapshot_object", tag = "bundles",
    params(("tag" = String, Path), ("hash" = String, Path)),
    responses(
        (status = 200, body = Vec<u8>, content_type = "application/zstd"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)
    )
)]
pub(crate) async fn object(
    State(engine): State<Engine>,
    Names(tag, hash): Names<Tag, Digest>,
) -> Result<impl IntoResponse, ApiError> {
    Ok(([(header::CONTENT_TYPE, "application/zstd")], engine.exported_object(tag, hash).await?))
}

/// Begin an import, or go on with one
///
/// The body is a bundle's document; the answer says which objects are still to be sent. Refused, before anything is
/// written, where the tag is taken (409), the document is not sound (400), or the snapshot is of no use here (501).
#[utoipa::path(
    post, path = "/v1/imports", operation_id = "begin_import", tag = "bundles", params(Called), request_body = Bundle,
    responses(
        (status = 200, body = ImportStatus), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 501, body = ErrorBody), (status = 503, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn begin(
    State(engine): State<Engine>,
    Query(called): Query<Called>,
    Whole(document): Whole,
) -> Result<axum::Json<ImportStatus>, ApiError> {
    Ok(axum::Json(engine.begin_import(document, called.tag()?).await?))
}

/// How far an import is
#[utoipa::path(
    get, path = "/v1/imports/{id}", operation_id = "import_status", tag = "bundles", params(("id" = String, Path), Called),
    responses((status = 200, body = ImportStatus), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody))
)]
pub(crate) async fn status(
    State(engine): State<Engine>,
    Name(id): Name<Digest>,
    Query(called): Query<Called>,
) -> Result<axum::Json<ImportStatus>, ApiError> {
    Ok(axum::Json(engine.import_status(id, called.tag()?).await?))
}

/// Give an import up
#[utoipa::path(
    delete, path = "/v1/imports/{id}", operation_id = "remove_import", tag = "bundles", params(("id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody))
)]
pub(crate) async fn remove(
    State(engine): State<Engine>,
    Name(id): Name<Digest>,
) -> Result<StatusCode, ApiError> {
    engine.remove_import(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send one object of an import
///
/// The body is the object, compressed with zstd. It is unpacked no further than the document says, and hashed.
#[utoipa::path(
    put, path = "/v1/imports/{id}/objects/{hash}", operation_id = "put_import_object", tag = "bundles",
    params(("id" = String, Path), ("hash" = String, Path)),
    request_body(content = Vec<u8>, content_type = "application/zstd"),
    responses(
        (status = 204), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn put_object(
    State(engine): State<Engine>,
    Names(id, hash): Names<Digest, Digest>,
    Whole(object): Whole,
) -> Result<StatusCode, ApiError> {
    engine.put_object(id, hash, object).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Check everything that arrived and make the snapshot visible
///
/// Its ancestors get their tags where these are free. Where something is missing or wrong, nothing becomes visible. With
/// `Accept: text/event-stream` as for making a snapshot.
#[utoipa::path(
    post, path = "/v1/imports/{id}/commit", operation_id = "commit_import", tag = "bundles", params(("id" = String, Path), Called),
    responses(
        (status = 201, body = Imported), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 507, body = ErrorBody)
    )
)]
pub(crate) async fn commit(
    State(engine): State<Engine>,
    Name(id): Name<Digest>,
    Query(called): Query<Called>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let tag = called.tag()?;
    let (tell, progress) = progress::channel();
    let committing = async move {
        tell.line("checking everything that arrived".to_owned());
        let imported = engine.commit_import(id, tag).await?;
        Ok(Done::created(&imported.snapshot.tag.clone(), imported))
    };
    progress::answer(&headers, progress, committing).await
}
