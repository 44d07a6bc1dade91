//! The sandbox API of E2B: what its clients call in a guest, in their words.
//!
//! Signed addresses are no matter of the agent: the controller, which gave the token out, checks them.

mod connect;
mod entry;
mod events;
pub(crate) mod facts;
pub(crate) mod files;
pub(crate) mod filesystem;
pub(crate) mod metrics;
pub(crate) mod process;
mod query;
pub(crate) mod tar;
pub(crate) mod upload;
pub(crate) mod watch;

use forkd_protocol::guest::ImageSettings;
use hyper::header::{AUTHORIZATION, HeaderMap};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::http::Response;
use crate::users::{self, UnknownUser, User};
use connect::{Code, ConnectError};

/// The user of calls that name none, where the image does not say: for who is used to another one than E2B's clients.
const DEFAULT_HEADER: &str = "x-forkd-default-user";

/// A path that no part of the API has.
pub(crate) fn no_route(path: &str) -> Response {
    ConnectError::new(Code::Unimplemented, format!("this agent has no {path}")).into_response()
}

/// The user that a call names, or the image, or the default.
fn user_named(name: Option<&str>, image: &ImageSettings, default: &str) -> Result<User, UnknownUser> {
    match name.filter(|name| !name.is_empty()).or(image.user.as_deref()) {
        Some(name) => users::find(name),
        None => users::find(default).or_else(|_| users::find("root")),
    }
}

/// The user of a call: the name in its Basic credentials, which carry no password.
fn user_of(headers: &HeaderMap, image: &ImageSettings) -> Result<User, ConnectError> {
    let basic = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let decoded =
        basic.map(|text| String::from_utf8_lossy(&BASE64.decode(text).unwrap_or_default()).into_owned());
    let name = decoded.as_deref().map(|pair| pair.split_once(':').map_or(pair, |(name, _)| name));
    let default = headers.get(DEFAULT_HEADER).and_then(|value| value.to_str().ok());
    let default = default.unwrap_or(users::DEFAULT_USER);
    user_named(name, image, default).map_err(|e| ConnectError::new(Code::Unauthenticated, e.to_string()))
}
