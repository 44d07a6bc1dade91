//! What a failure is to a client: the only place that knows HTTP statuses of failures.
//!
//! | class | status |
//! |---|---|
//! | `Caller` | 400 (413 where a body is too long, 415 where it is no JSON) |
//! | `NotFound` | 404 |
//! | `Conflict` | 409 |
//! | `Exhausted` | 503, or 507 where it is the disk that is full |
//! | `HostUnfit` | 501 |
//! | `GuestFault` | 502 |
//! | `Corrupt`, `Internal` | 500 |

use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, QueryRejection, RawPathParamsRejection};
use axum::response::{IntoResponse, Response};
use forkd_engine::EngineError;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::NameError;
use forkd_protocol::rest::{ErrorBody, ErrorEvent};
use forkd_store::StoreError;
use http::{HeaderValue, StatusCode, header};

/// Code of a failure for want of disk space.
const NO_SPACE: &str = "no_space";

/// A refused or failed request.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    /// Seconds after which it may be asked again.
    retry_after: Option<u64>,
}

/// The status of a class of failures; `code` tells a full disk from other wants.
pub fn status_of(class: ErrorClass, code: &str) -> StatusCode {
    match class {
        ErrorClass::Caller => StatusCode::BAD_REQUEST,
        ErrorClass::NotFound => StatusCode::NOT_FOUND,
        ErrorClass::Conflict => StatusCode::CONFLICT,
        ErrorClass::Exhausted if code == NO_SPACE => StatusCode::INSUFFICIENT_STORAGE,
        ErrorClass::Exhausted => StatusCode::SERVICE_UNAVAILABLE,
        ErrorClass::HostUnfit => StatusCode::NOT_IMPLEMENTED,
        ErrorClass::GuestFault => StatusCode::BAD_GATEWAY,
        ErrorClass::Corrupt | ErrorClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// What figures call the failures of a status; none where it is no failure.
pub(crate) fn class_of(status: StatusCode) -> Option<&'static str> {
    let class = match status.as_u16() {
        ..400 => return None,
        401 | 403 => return Some("refused"),
        404 => ErrorClass::NotFound,
        409 => ErrorClass::Conflict,
        429 | 503 | 507 => ErrorClass::Exhausted,
        400..=499 => ErrorClass::Caller,
        501 => ErrorClass::HostUnfit,
        502 => ErrorClass::GuestFault,
        _ => ErrorClass::Internal,
    };
    Some(class.name())
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &str, error: impl Into<String>) -> Self {
        let body = ErrorBody { error: error.into(), code: code.to_owned(), failures: Vec::new() };
        Self { status, body, retry_after: None }
    }

    /// With a time after which to ask again, seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// Nobody is known by what was sent.
    pub(crate) fn unauthorized(error: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", error)
    }

    /// What is named is not there, or not for this caller.
    pub(crate) fn not_found(error: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", error)
    }

    /// The status it is answered with.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// A request that is wrong.
    pub(crate) fn bad_request(error: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", error)
    }

    /// What it says.
    pub(crate) fn text(&self) -> &str {
        &self.body.error
    }

    /// As the last event of a stream, whose status line is long gone.
    pub(crate) fn into_event(self) -> ErrorEvent {
        ErrorEvent { status: self.status.as_u16(), body: self.body }
    }

    /// axum tells bodies that are no JSON (400) from those of another shape (422); here both are 400.
    fn refused(status: StatusCode, text: String) -> Self {
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(status, "too_large", text),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Self::new(status, "unsupported_media_type", text),
            _ => Self::bad_request(text),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(
                status = self.status.as_u16(),
                code = self.body.code,
                error = self.body.error,
                "request failed"
            );
        }
        let mut response = (self.status, Json(self.body)).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"forkd\""));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(e: EngineError) -> Self {
        Self { status: status_of(e.class(), e.code()), body: e.body(), retry_after: None }
    }
}

impl From<StoreError> for ApiError {
    fn from(e: StoreError) -> Self {
        EngineError::from(e).into()
    }
}

impl From<NameError> for ApiError {
    fn from(e: NameError) -> Self {
        Self::bad_request(e.to_string())
    }
}

impl From<JsonRejection> for ApiError {
    fn from(e: JsonRejection) -> Self {
        Self::refused(e.status(), e.body_text())
    }
}

impl From<BytesRejection> for ApiError {
    fn from(e: BytesRejection) -> Self {
        Self::refused(e.status(), e.body_text())
    }
}

impl From<QueryRejection> for ApiError {
    fn from(e: QueryRejection) -> Self {
        Self::refused(e.status(), e.body_text())
    }
}

impl From<RawPathParamsRejection> for ApiError {
    fn from(e: RawPathParamsRejection) -> Self {
        Self::bad_request(e.body_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_status() {
        for (class, code, status) in [
            (ErrorClass::Caller, "bad_request", 400),
            (ErrorClass::NotFound, "not_found", 404),
            (ErrorClass::Conflict, "tag_taken", 409),
            (ErrorClass::Exhausted, "exhausted", 503),
            (ErrorClass::Exhausted, NO_SPACE, 507),
            (ErrorClass::HostUnfit, "host_unfit", 501),
            (ErrorClass::GuestFault, "guest_fault", 502),
            (ErrorClass::Corrupt, "corrupt", 500),
            (ErrorClass::Internal, "internal", 500),
        ] {
            assert_eq!(status_of(class, code).as_u16(), status);
            // Damage and faults of forkd have one status.
            let counted = if class == ErrorClass::Corrupt { ErrorClass::Internal } else { class };
            assert_eq!(class_of(status_of(class, code)), Some(counted.name()));
        }
    }
}
