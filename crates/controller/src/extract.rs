//! Taking requests apart. What cannot be taken apart is refused in the API's own shape.

use std::str::FromStr;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use forkd_protocol::names::NameError;
use http::request::Parts;
use hyper::body::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// A JSON body: an object.
#[derive(Debug)]
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let whole = Request::from_parts(parts.clone(), body);
        let Whole(text) = Whole::from_request(whole, state).await?;
        // What is read by its names would be read by its order, too.
        if text.trim_ascii_start().starts_with(b"[") {
            return Err(ApiError::bad_request("the body is a list where an object is expected"));
        }
        let request = Request::from_parts(parts, text.into());
        let axum::Json(value) = axum::Json::from_request(request, state).await?;
        Ok(Self(value))
    }
}

/// A JSON body of a type that reads every form by itself: a word, a list, an object.
#[derive(Debug, FromRequest)]
#[from_request(via(axum::Json), rejection(ApiError))]
pub(crate) struct AnyJson<T>(pub(crate) T);

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

/// A number of a line or an event: as large as the registry can count.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(try_from = "u64")]
pub(crate) struct Sequence(i64);

impl Sequence {
    pub(crate) fn number(self) -> u64 {
        self.0.unsigned_abs()
    }
}

impl TryFrom<u64> for Sequence {
    type Error = &'static str;

    fn try_from(number: u64) -> Result<Self, &'static str> {
        i64::try_from(number).map(Self).map_err(|_| "a number is at most 9223372036854775807")
    }
}

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
