//! Work that takes long: answered when it is done, or with events until then where the client wants that.

use std::convert::Infallible;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::{Stream, stream};
use http::{HeaderMap, StatusCode, header};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::audit::{Deferred, Made};
use crate::error::ApiError;

/// Lines of progress that may wait for a client; what is beyond that it does not see.
const WAITING: usize = 64;

/// Where progress is told.
#[derive(Debug, Clone)]
pub(crate) struct Teller(mpsc::Sender<String>);

impl Teller {
    /// Advice for whoever listens; a slow or absent listener holds nobody up.
    pub(crate) fn line(&self, line: String) {
        let _ = self.0.try_send(line);
    }

    /// The same for the engine's verbs.
    pub(crate) fn into_sender(self) -> mpsc::Sender<String> {
        self.0
    }
}

/// Where progress is told, and where it is heard.
pub(crate) fn channel() -> (Teller, mpsc::Receiver<String>) {
    let (told, heard) = mpsc::channel(WAITING);
    (Teller(told), heard)
}

/// What was made: the body of the answer, its status, and what it is called in the audit log.
#[derive(Debug)]
pub(crate) struct Done<T> {
    pub(crate) status: StatusCode,
    pub(crate) made: Vec<String>,
    pub(crate) body: T,
}

impl<T> Done<T> {
    /// 201 with one thing that was made.
    pub(crate) fn created(made: &str, body: T) -> Self {
        Self { status: StatusCode::CREATED, made: vec![made.to_owned()], body }
    }
}

/// Whether an answer in events is asked for; who takes JSON as well gets that.
pub(crate) fn wants_events(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream") && !accept.contains("application/json"))
}

/// The answer when the work is done, or `progress` events until then and one `done` or `error`.
pub(crate) async fn answer<T: Serialize + Send + 'static>(
    headers: &HeaderMap,
    progress: mpsc::Receiver<String>,
    making: impl Future<Output = Result<Done<T>, ApiError>> + Send + 'static,
) -> Result<Response, ApiError> {
    if wants_events(headers) {
        let (tell, deferred) = Deferred::new();
        let making = async move {
            let outcome = making.await;
            drop(tell.send(match &outcome {
                Ok(done) => (done.status, done.made.clone()),
                Err(e) => (e.status(), Vec::new()),
            }));
            outcome
        };
        let events = Sse::new(events(progress, making)).keep_alive(KeepAlive::default());
        return Ok((axum::Extension(deferred), events).into_response());
    }
    let (done, ()) = tokio::join!(making, drain(progress));
    let Done { status, made, body } = done?;
    Ok((status, axum::Extension(Made(made)), axum::Json(body)).into_response())
}

async fn drain(mut progress: mpsc::Receiver<String>) {
    while progress.recv().await.is_some() {}
}

/// Progress until the work has ended, then how it ended.
fn events<T: Serialize>(
    progress: mpsc::Receiver<String>,
    making: impl Future<Output = Result<Done<T>, ApiError>>,
) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(Some((progress, Box::pin(making))), |state| async move {
        let (mut progress, mut making) = state?;
        let outcome = tokio::select! {
            biased;
            Some(line) = progress.recv() => {
                // Lines of an event are told apart by the receiver; a carriage return would confuse it.
                let event = Event::default().event("progress").data(line.replace('\r', ""));
                return Some((Ok(event), Some((progress, making))));
            }
            outcome = &mut making => outcome,
        };
        Some((Ok(last(outcome)), None))
    })
}

fn last<T: Serialize>(outcome: Result<Done<T>, ApiError>) -> Event {
    let (name, json) = match outcome {
        Ok(done) => ("done", serde_json::to_string(&done.body)),
        Err(e) => ("error", serde_json::to_string(&e.into_event())),
    };
    Event::default().event(name).data(json.unwrap_or_default())
}
