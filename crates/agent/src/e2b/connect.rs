//! The Connect protocol with its JSON codec: envelopes, errors, unary calls.

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::http::{Body, Response, read_limited};

pub(super) const UNARY: &str = "application/json";
pub(super) const STREAM: &str = "application/connect+json";
/// Flag of the last envelope of an answer.
const END: u8 = 0b10;
const COMPRESSED: u8 = 0b01;
const HEADER: usize = 5;
/// Longest message of a stream.
const MESSAGE_MAX: usize = 16 * 1024 * 1024;

/// Error codes of the protocol, as far as this API uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Code {
    InvalidArgument,
    FailedPrecondition,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    Unimplemented,
    Unavailable,
    Unauthenticated,
    DataLoss,
    Internal,
}

/// A failed call.
#[derive(Debug, Clone, Serialize, thiserror::Error)]
#[error("{message}")]
pub(super) struct ConnectError {
    pub(super) code: Code,
    pub(super) message: Cow<'static, str>,
}

impl Code {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::DataLoss | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl ConnectError {
    pub(super) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    /// As the answer of a unary call.
    pub(super) fn into_response(self) -> Response {
        Body::json(self.code.status(), &self)
    }

    /// As the answer of a streaming call that never began: 200, with the error in the last envelope. Clients read
    /// no body of any other status.
    pub(super) fn into_stream(self) -> Response {
        Body::whole(end(Some(&self))).respond(StatusCode::OK, STREAM)
    }
}

/// The answer of a unary call.
pub(super) fn unary<T: Serialize>(result: Result<T, ConnectError>) -> Response {
    match result {
        Ok(answer) => Body::json(StatusCode::OK, &answer),
        Err(error) => error.into_response(),
    }
}

/// The request of a unary call.
pub(super) async fn read_unary<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, ConnectError> {
    expect(&request, UNARY)?;
    let body = read_limited(request).await.map_err(|e| ConnectError::invalid(e.to_string()))?;
    parse(&body)
}

/// The one message of a call that answers with a stream.
pub(super) async fn read_first<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, ConnectError> {
    expect(&request, STREAM)?;
    let body = read_limited(request).await.map_err(|e| ConnectError::invalid(e.to_string()))?;
    let mut envelopes = Envelopes::default();
    envelopes.feed(&body);
    match envelopes.next()? {
        Some(message) => parse(&message),
        None => Err(ConnectError::invalid("the request has no message")),
    }
}

pub(super) fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, ConnectError> {
    serde_json::from_slice(message).map_err(|e| ConnectError::invalid(e.to_string()))
}

/// Only the JSON codec is spoken.
pub(super) fn expect(request: &Request<Incoming>, wanted: &'static str) -> Result<(), ConnectError> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(ConnectError::invalid(format!("content type '{kind}' in place of '{wanted}'")))
}

/// Puts a message together without copying it: the header goes before what `write` appends.
pub(super) fn envelope(capacity: usize, write: impl FnOnce(&mut BytesMut)) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEADER + capacity);
    frame.put_bytes(0, HEADER);
    write(&mut frame);
    // A message is at most a chunk of output or a short error.
    let length = u32::try_from(frame.len() - HEADER).unwrap_or(u32::MAX);
    frame[1..HEADER].copy_from_slice(&length.to_be_bytes());
    frame.freeze()
}

/// A message as an envelope.
pub(super) fn message(message: &impl Serialize) -> Bytes {
    let text = serde_json::to_vec(message).unwrap_or_else(|_| b"{}".to_vec());
    envelope(text.len(), |frame| frame.put_slice(&text))
}

/// The last envelope of a stream.
pub(super) fn end(error: Option<&ConnectError>) -> Bytes {
    #[derive(Serialize)]
    struct EndOfStream<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<&'a ConnectError>,
    }
    let mut frame = BytesMut::from(message(&EndOfStream { error }));
    frame[0] = END;
    frame.freeze()
}

/// Takes a stream of bytes apart into messages.
#[derive(Debug, Default)]
pub(super) struct Envelopes(BytesMut);

impl Envelopes {
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole message; None where more bytes are needed or the stream has ended.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, ConnectError> {
        let Some(&[flags, a, b, c, d]) = self.0.first_chunk::<HEADER>() else { return Ok(None) };
        if flags & COMPRESSED != 0 {
            return Err(ConnectError::new(Code::Unimplemented, "compressed messages are not supported"));
        }
        let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if length > MESSAGE_MAX {
            return Err(ConnectError::new(Code::ResourceExhausted, "a message is longer than 16 MiB"));
        }
        if self.0.len() < HEADER + length {
            return Ok(None);
        }
        self.0.advance(HEADER);
        let message = self.0.split_to(length).freeze();
        Ok((flags & END == 0).then_some(message))
    }
}

/// A message without fields.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Empty {}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn end_envelopes() {
        assert_eq!(&end(None)[..], b"\x02\0\0\0\x02{}");
        let error = ConnectError::new(Code::NotFound, "gone");
        assert_eq!(&end(Some(&error))[5..], br#"{"error":{"code":"not_found","message":"gone"}}"#);
    }

    #[test]
    fn every_code_has_the_status_that_clients_expect() {
        let expected = [
            (Code::InvalidArgument, 400),
            (Code::FailedPrecondition, 400),
            (Code::DeadlineExceeded, 504),
            (Code::NotFound, 404),
            (Code::AlreadyExists, 409),
            (Code::PermissionDenied, 403),
            (Code::ResourceExhausted, 429),
            (Code::Unimplemented, 501),
            (Code::Unavailable, 503),
            (Code::Unauthenticated, 401),
            (Code::DataLoss, 500),
            (Code::Internal, 500),
        ];
        for (code, status) in expected {
            assert_eq!(code.status().as_u16(), status, "{code:?}");
        }
    }

    #[test]
    fn hostile_envelopes() {
        let refuse = |bytes: &[u8]| {
            let mut envelopes = Envelopes::default();
            envelopes.feed(bytes);
            envelopes.next().unwrap_err().code
        };
        assert_eq!(refuse(b"\x01\0\0\0\x02{}"), Code::Unimplemented);
        assert_eq!(refuse(b"\0\xff\xff\xff\xff"), Code::ResourceExhausted);
    }

    proptest! {
        #[test]
        fn messages_survive_any_splitting(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8),
            step in 1_usize..50,
        ) {
            let mut wire = Vec::new();
            for text in &messages {
                wire.extend_from_slice(&envelope(0, |frame| frame.put_slice(text)));
            }
            let mut envelopes = Envelopes::default();
            let mut found = Vec::new();
            for part in wire.chunks(step) {
                envelopes.feed(part);
                while let Some(message) = envelopes.next().unwrap() {
                    found.push(message.to_vec());
                }
            }
            prop_assert_eq!(found, messages);
        }
    }
}
