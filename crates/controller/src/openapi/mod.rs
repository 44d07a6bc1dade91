//! The document that describes the API: what the routes say of themselves, and what all of them have in common.

mod complete;
mod page;

#[cfg(test)]
pub(crate) use complete::as_routed;

use std::sync::OnceLock;

use axum::extract::State;
use axum::response::IntoResponse;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use serde_json::Value;

use crate::router::described;
use crate::service::Service;

/// The page neither runs nor fetches anything.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// The OpenAPI document.
pub fn openapi() -> Value {
    let mut document = serde_json::to_value(described().into_openapi()).unwrap_or_default();
    complete::complete(&mut document);
    document
}

/// The OpenAPI document as text, as it is served and stored in `docs/openapi.json`.
pub fn openapi_json() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| format!("{:#}\n", openapi()))
}

/// `GET /openapi.json`.
pub(crate) async fn document(_: State<Service>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], openapi_json())
}

/// `GET /docs`: the same for people.
pub(crate) async fn docs(_: State<Service>) -> impl IntoResponse {
    static PAGE: OnceLock<String> = OnceLock::new();
    let page = PAGE.get_or_init(|| page::render(&openapi())).as_str();
    ([(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)], page)
}
