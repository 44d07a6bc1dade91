//! Reading the audit log.

use axum::extract::State;
use forkd_protocol::rest::ErrorBody;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::audit::{AuditReport, Line, newest, verify};
use crate::error::ApiError;
use crate::extract::{Query, Sequence};
use crate::service::{Service, blocking};

/// Most lines of one answer.
const MOST: usize = 1000;

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// How many, 1 to 1000; the newest
    #[serde(default = "usual")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// Only lines after this number
    #[serde(default)]
    #[param(value_type = u64, maximum = 9_223_372_036_854_775_807_i64)]
    after: Sequence,
}

fn usual() -> usize {
    100
}

/// The newest lines of the audit log, oldest first
#[utoipa::path(
    get, path = "/v1/audit", operation_id = "audit_lines", tag = "access", params(Which),
    responses((status = 200, body = [Line]), (status = 400, body = ErrorBody), (status = 500, body = ErrorBody))
)]
pub(crate) async fn lines(
    State(service): State<Service>,
    Query(Which { limit, after }): Query<Which>,
) -> Result<axum::Json<Vec<Line>>, ApiError> {
    if !(1..=MOST).contains(&limit) {
        return Err(ApiError::bad_request(format!("limit must be 1 to {MOST}")));
    }
    let folder = service.audit().folder().to_owned();
    let lines = blocking(move || newest(&folder, after.number(), limit)).await?;
    Ok(axum::Json(lines.map_err(|e| unreadable(&e))?))
}

/// Check the whole audit log: whether every line is there and as it was written
#[utoipa::path(
    get, path = "/v1/audit/verify", operation_id = "verify_audit", tag = "access",
    responses((status = 200, body = AuditReport), (status = 500, body = ErrorBody))
)]
pub(crate) async fn check(State(service): State<Service>) -> Result<axum::Json<AuditReport>, ApiError> {
    service.audit().settle().await;
    let (folder, store) = (service.audit().folder().to_owned(), service.engine().store().clone());
    let report = blocking(move || {
        let head = store.audit_head()?;
        verify(&folder, head.as_ref()).map_err(|e| unreadable(&e))
    });
    Ok(axum::Json(report.await??))
}

fn unreadable(e: &std::io::Error) -> ApiError {
    let text = format!("the audit log cannot be read: {e}");
    ApiError::new(http::StatusCode::INTERNAL_SERVER_ERROR, "internal", text)
}
