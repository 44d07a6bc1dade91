//! Bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, StatusCode};
use serde::Serialize;

/// Most bytes of a request that is read as a whole.
pub(crate) const REQUEST_MAX: usize = 64 * 1024 * 1024;

/// What every handler answers.
pub(crate) type Response = hyper::Response<Body>;

/// A body that is either there already or comes in pieces. Lives on the agent's one thread.
pub(crate) enum Body {
    Whole(Option<Bytes>),
    Pieces(Pin<Box<dyn Stream<Item = std::io::Result<Bytes>>>>),
}

/// Why a request's body was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the request is longer than {REQUEST_MAX} bytes")]
    TooLong,
    /// The client left or broke the protocol.
    #[error("the request's body did not arrive")]
    Broken,
}

/// Reads a request's body as a whole.
pub(crate) async fn read_limited(request: Request<Incoming>) -> Result<Bytes, BodyError> {
    match Limited::new(request.into_body(), REQUEST_MAX).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(e) if e.is::<http_body_util::LengthLimitError>() => Err(BodyError::TooLong),
        Err(_) => Err(BodyError::Broken),
    }
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::Whole(None)
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }

    pub(crate) fn pieces(stream: impl Stream<Item = std::io::Result<Bytes>> + 'static) -> Self {
        Self::Pieces(Box::pin(stream))
    }

    /// A JSON answer. What cannot be written as JSON is a mistake of the agent's, answered with 500.
    pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
        let (status, bytes) = match serde_json::to_vec(value) {
            Ok(bytes) => (status, bytes),
            Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{{\"message\":\"{e}\"}}").into_bytes()),
        };
        Self::whole(bytes).respond(status, "application/json")
    }

    pub(crate) fn respond(self, status: StatusCode, content_type: &'static str) -> Response {
        let mut response = Response::new(self);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Pieces(stream) => {
                stream.as_mut().poll_next(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Pieces(_) => SizeHint::default(),
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "Body({} bytes)", bytes.as_ref().map_or(0, Bytes::len)),
            Self::Pieces(_) => f.write_str("Body(stream)"),
        }
    }
}

impl From<Infallible> for BodyError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
