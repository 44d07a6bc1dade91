//! Taking requests apart. What cannot be taken apart is refused in the API's own shape.

use std::str::FromStr;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use forkd_protocol::names::NameError;
use http::request::Parts;
use hyper::body::Body;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// A JSON body.
#[derive(Debug, FromRequest)]
#[from_request(via(axum::Json), rejection(ApiError))]
pub(crate) struct Json<T>(pub(crate) T);

/// A JSON body that may be left out.
#[derive(Debug)]
pub(crate) struct MaybeJson<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if request.body().is_end_stream() {
            return Ok(Self(T::default()));
        }
        let Json(body) = Json::from_request(request, state).await?;
        Ok(Self(body))
    }
}

/// A whole body.
#[derive(Debug)]
pub(crate) struct Whole(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for Whole {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        Ok(Self(Bytes::from_request(request, state).await?))
    }
}

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
        Ok(Self(variable(&params, 0)?))
    }
}

/// The names that are the two variables of the path.
#[derive(Debug)]
pub(crate) struct Names<A, B>(pub(crate) A, pub(crate) B);

impl<S, A, B> FromRequestParts<S> for Names<A, B>
where
    S: Send + Sync,
    A: FromStr<Err = NameError>,
    B: FromStr<Err = NameError>,
{
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let params = RawPathParams::from_request_parts(parts, state).await?;
        Ok(Self(variable(&params, 0)?, variable(&params, 1)?))
    }
}

fn variable<T: FromStr<Err = NameError>>(params: &RawPathParams, n: usize) -> Result<T, NameError> {
    params.iter().nth(n).map_or("", |(_, value)| value).parse()
}
