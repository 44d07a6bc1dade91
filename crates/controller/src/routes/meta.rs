//! The controller itself.

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use forkd_protocol::rest::{ErrorBody, Healthz, VersionInfo};
use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

use crate::error::ApiError;
use crate::metrics::{self, VERSION};
use crate::service::Service;

/// What Prometheus has always read, and what it asks for since it reads OpenMetrics.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether the controller answers
#[utoipa::path(get, path = "/healthz", operation_id = "health", tag = "controller", responses((status = 200, body = Healthz)))]
pub(crate) async fn healthz() -> Json<Healthz> {
    Json(Healthz { ok: true })
}

/// Which forkd this is
#[utoipa::path(get, path = "/version", operation_id = "version", tag = "controller", responses((status = 200, body = VersionInfo)))]
pub(crate) async fn version() -> Json<VersionInfo> {
    Json(VersionInfo { version: VERSION.to_owned(), api: "v1".to_owned() })
}

/// Figures for Prometheus
///
/// What is costly to look at (memory of sandboxes, bytes of the store) is up to 15 seconds old.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "controller",
    responses(
        (status = 200, content(
            (String = "text/plain"), (String = "application/openmetrics-text")
        )),
        (status = 500, body = ErrorBody)
    )
)]
pub(crate) async fn metrics(
    State(service): State<Service>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = if accept.contains("application/openmetrics-text") { OPEN_METRICS } else { PLAIN };
    Ok(([(CONTENT_TYPE, kind)], metrics::text(&service).await?))
}
