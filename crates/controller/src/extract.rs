//! Taking requests apart. What cannot be taken apart is refused in the API's own shape.

use std::str::FromStr;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams};
use forkd_protocol::names::NameError;
use http::request::Parts;

use crate::error::ApiError;

/// A JSON body.
#[derive(Debug, FromRequest)]
#[from_request(via(axum::Json), rejection(ApiError))]
pub(crate) struct Json<T>(pub(crate) T);

/// The query.
#[derive(Debug, FromRequestParts)]
#[from_request(via(axum::extract::Query), rejection(ApiError))]
pub(crate) struct Query<T>(pub(crate) T);

/// The name that is the first variable of the path: checked before anything else sees it.
#[derive(Debug)]
pub(crate) struct Name<T>(pub(crate) T);

impl<S, T> FromRequestParts<S> for Name<T>
where
    S: Send + Sync,
    T: FromStr<Err = NameError>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let params = RawPathParams::from_request_parts(parts, state).await?;
        let name = params.iter().next().map_or("", |(_, value)| value);
        Ok(Self(name.parse()?))
    }
}
