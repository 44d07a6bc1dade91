//! The sandbox API of E2B: what its clients call in a guest, in their words.
//!
//! Not here yet: watching folders, uploads in several parts, signed addresses. They are answered as unimplemented.

mod connect;
mod entry;
mod events;
pub(crate) mod files;
pub(crate) mod filesystem;
pub(crate) mod metrics;
pub(crate) mod process;
mod query;

use hyper::header::{AUTHORIZATION, HeaderMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::http::Response;
use crate::users::{self, UnknownUser, User};
use connect::{Code, ConnectError};

/// What E2B's own images call their user.
const DEFAULT_USER: &str = "user";

/// A path that no part of the API has.
pub(crate) fn no_route(path: &str) -> Response {
    ConnectError::new(Code::Unimplemented, format!("this agent has no {path}")).into_response()
}

/// The user that a call names, or the image's default.
fn user_named(name: Option<&str>) -> Result<User, UnknownUser> {
    match name.filter(|name| !name.is_empty()) {
        Some(name) => users::find(name),
        None => users::find(DEFAULT_USER).or_else(|_| users::find("root")),
    }
}

/// The user of a call: the name in its Basic credentials, which carry no password.
fn user_of(headers: &HeaderMap) -> Result<User, ConnectError> {
    let basic = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let decoded =
        basic.map(|text| String::from_utf8_lossy(&BASE64.decode(text).unwrap_or_default()).into_owned());
    let name = decoded.as_deref().map(|pair| pair.split_once(':').map_or(pair, |(name, _)| name));
    user_named(name).map_err(|e| ConnectError::new(Code::Unauthenticated, e.to_string()))
}
