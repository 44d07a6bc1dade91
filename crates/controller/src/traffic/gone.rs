//! Traffic that does not arrive. Clients tell a sandbox that is gone from a closed port by the words of the message.

use axum::Json;
use axum::response::{IntoResponse, Response};
use forkd_engine::EngineError;
use forkd_protocol::error::{ErrorClass, chain};
use http::StatusCode;
use serde::Serialize;

use super::target::Target;
use crate::proxy::ProxyError;

/// Why, and to whom.
#[derive(Debug, Serialize)]
pub(super) struct Gone {
    #[serde(rename = "sandboxId", skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    port: Option<u16>,
    message: String,
    code: u16,
}

impl Gone {
    fn new(status: StatusCode, target: &Target, message: impl Into<String>) -> Self {
        let (id, port) = (Some(target.id.to_string()), Some(target.port));
        Self { id, port, message: message.into(), code: status.as_u16() }
    }

    pub(super) fn bad_request(message: &str) -> Self {
        Self { id: None, port: None, message: message.to_owned(), code: StatusCode::BAD_REQUEST.as_u16() }
    }

    pub(super) fn unknown(target: &Target) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, target, "The sandbox was not found")
    }

    pub(super) fn not_running(target: &Target, e: &EngineError) -> Self {
        let told = chain(e);
        let message = match e.class() {
            // Nothing is lost: it can be continued.
            ErrorClass::Conflict => format!("The sandbox was not found running: {told}"),
            ErrorClass::NotFound => return Self::unknown(target),
            _ => format!("The sandbox could not be continued: {told}"),
        };
        Self::new(StatusCode::BAD_GATEWAY, target, message)
    }

    pub(super) fn closed(target: &Target) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, target, "The sandbox is running but port is not open")
    }

    pub(super) fn failed(target: &Target, e: &EngineError) -> Self {
        match e.class() {
            ErrorClass::NotFound | ErrorClass::Conflict => Self::not_running(target, e),
            _ => Self::new(StatusCode::BAD_GATEWAY, target, chain(e)),
        }
    }

    pub(super) fn no_answer(target: &Target, e: &ProxyError) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, target, chain(e))
    }

    pub(super) fn no_token(target: &Target) -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            target,
            "X-Access-Token is missing, or is not that of this sandbox",
        )
    }

    pub(super) fn no_traffic_token(target: &Target) -> Self {
        let text = "E2B-Traffic-Access-Token is missing, or is not that of this sandbox";
        Self::new(StatusCode::FORBIDDEN, target, text)
    }

    pub(super) fn foreign_page(target: &Target) -> Self {
        let text = "this sandbox has no access token, and pages from elsewhere may not use its agent";
        Self::new(StatusCode::FORBIDDEN, target, text)
    }

    pub(super) fn reserved(target: &Target) -> Self {
        let text = "the agent's own verbs are not passed on; there is an API route for each";
        Self::new(StatusCode::NOT_FOUND, target, text)
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> u16 {
        self.code
    }
}

impl IntoResponse for Gone {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code).unwrap_or(StatusCode::BAD_GATEWAY);
        (status, Json(self)).into_response()
    }
}
