//! How a controller ends: nothing new is begun, what is under way may end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::RETRY_AFTER;
use http::{HeaderValue, Method, StatusCode};
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::watch;

use crate::error::ApiError;

/// When the next controller may answer, seconds.
const RETRY_AFTER_SECS: HeaderValue = HeaderValue::from_static("5");

/// How a controller ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drain {
    /// How long calls under way may take to end.
    pub within: Duration,
    /// What is left of sandboxes.
    pub leave: Leave,
}

/// What is left of sandboxes when the controller has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// They run on, and the next controller finds them again.
    Sandboxes,
    /// They are ended.
    Nothing,
}

impl Default for Drain {
    fn default() -> Self {
        Self { within: Duration::from_secs(10), leave: Leave::Sandboxes }
    }
}

/// Counts the calls under way, and refuses new ones once the controller is ending.
#[derive(Debug, Clone)]
pub(crate) struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    closed: AtomicBool,
    under_way: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Inner { closed: AtomicBool::new(false), under_way: watch::Sender::new(0) }))
    }
}

impl Gate {
    /// From now on nothing new is begun.
    pub(crate) fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
    }

    /// Resolves when no call is under way.
    pub(crate) async fn empty(&self) {
        // The sender lives as long as `self`.
        drop(self.0.under_way.subscribe().wait_for(|count| *count == 0).await);
    }

    /// One more call, unless nothing new is begun.
    fn enter(&self) -> Option<Pass> {
        // First counted, then looked: whoever closes and then finds none under way has let nobody by.
        self.0.under_way.send_modify(|count| *count += 1);
        let pass = Pass(Arc::clone(&self.0));
        (!self.0.closed.load(Ordering::SeqCst)).then_some(pass)
    }
}

/// A call under way.
#[derive(Debug)]
struct Pass(Arc<Inner>);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.under_way.send_modify(|count| *count -= 1);
    }
}

/// Lets calls through. What only looks is answered to the end, and nobody waits for it.
pub(crate) async fn gate(State(gate): State<Gate>, request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let Some(pass) = gate.enter() else { return ending() };
    let answer = next.run(request).await;
    // An answer that is still being streamed is part of its call.
    let (parts, body) = answer.into_parts();
    let held = HeldBody { body, _pass: pass };
    Response::from_parts(parts, axum::body::Body::new(held))
}

fn ending() -> Response {
    let text = "this controller is ending and begins nothing new; ask again in a moment";
    let mut answer = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "draining", text).into_response();
    answer.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECS);
    answer
}

/// A body whose end is the end of its call.
struct HeldBody {
    body: axum::body::Body,
    _pass: Pass,
}

impl Body for HeldBody {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_gate_lets_nobody_in_and_is_empty_when_the_last_has_left() {
        let gate = Gate::default();
        let first = gate.enter().unwrap();
        gate.close();
        assert!(gate.enter().is_none());
        let waiting = tokio::time::timeout(Duration::from_millis(20), gate.empty()).await;
        assert!(waiting.is_err(), "one is under way");
        drop(first);
        gate.empty().await;
    }
}
