//! Refusals: the status once more in the body, since some clients look there.

use axum::Json;
use axum::response::{IntoResponse, Response};
use forkd_engine::EngineError;
use forkd_protocol::names::NameError;
use http::StatusCode;
use serde::Serialize;

use crate::error::{ApiError, status_of};

#[derive(Debug, Clone, Serialize)]
pub(crate) struct E2bError {
    pub(super) code: u16,
    pub(super) message: String,
}

impl E2bError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { code: status.as_u16(), message: message.into() }
    }

    pub(super) fn bad_request(e: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, e.to_string())
    }

    pub(super) fn unauthorized(message: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    pub(super) fn no_sandbox(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no sandbox {id:?}"))
    }

    /// Something of E2B's that forkd does not have.
    pub(super) fn not_served(what: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, format!("{what} is not served by forkd"))
    }
}

impl From<ApiError> for E2bError {
    fn from(e: ApiError) -> Self {
        Self::new(e.status(), e.text())
    }
}

impl From<EngineError> for E2bError {
    fn from(e: EngineError) -> Self {
        Self::new(status_of(e.class(), e.code()), e.body().error)
    }
}

impl From<NameError> for E2bError {
    fn from(e: NameError) -> Self {
        Self::bad_request(e)
    }
}

impl IntoResponse for E2bError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Clients repeat some failures by themselves; what a guest could not do it cannot do the next moment either.
        let repeat = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        (status, [("should-retry", if repeat { "true" } else { "false" })], Json(self)).into_response()
    }
}
