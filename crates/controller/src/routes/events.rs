//! What happened, and what happens.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use forkd_engine::Engine;
use forkd_protocol::rest::{ErrorBody, EventInfo};
use futures::{Stream, stream};
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, watch};
use utoipa::IntoParams;

use crate::access::Caller;
use crate::error::ApiError;
use crate::extract::{Query, Sequence};
use crate::progress::wants_events;
use crate::service::Service;

/// Most events of one answer.
const MOST: usize = 1000;
/// Where a follower says what it has seen, as browsers do when they come back.
const SEEN: &str = "last-event-id";

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only what comes after this number; absent is the newest, or, where they are followed, what happens from now on
    #[param(value_type = Option<u64>, maximum = 9_223_372_036_854_775_807_i64)]
    after: Option<Sequence>,
    /// At most so many, 1 to 1000; does not count where they are followed
    #[serde(default = "usual")]
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: usize,
    /// What happened to this: a sandbox's id, a snapshot's tag, the name of an image or kernel
    subject: Option<String>,
    /// What has to do with the snapshot of this tag
    tag: Option<String>,
    /// Of this kind, such as `sandbox.ended`, or of these, such as `sandbox`
    kind: Option<String>,
}

fn usual() -> usize {
    100
}

/// What happened, oldest first
///
/// The newest 10,000 are kept. With `Accept: text/event-stream` the answer has no end: each event as it happens, its
/// number as `id`, its kind as `event`, EventInfo as `data`; `Last-Event-ID` goes on after that number.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "list_events", tag = "events", params(Which),
    responses(
        (status = 200, content(([EventInfo] = "application/json"), (String = "text/event-stream"))),
        (status = 400, body = ErrorBody),
        (status = 503, body = ErrorBody, description = "too many follow already")
    )
)]
pub(crate) async fn list(
    State(service): State<Service>,
    caller: Caller,
    headers: HeaderMap,
    Query(which): Query<Which>,
) -> Result<Response, ApiError> {
    if !(1..=MOST).contains(&which.limit) {
        return Err(ApiError::bad_request(format!("limit must be 1 to {MOST}")));
    }
    if wants_events(&headers) {
        let follower = Follower::begin(&service, caller, which, &headers).await?;
        return Ok(Sse::new(follower.stream()).keep_alive(KeepAlive::default()).into_response());
    }
    let mut found = service.engine().events(which.after.unwrap_or_default().number()).await?;
    found.retain(|event| which.fits(event) && sees(&caller, event));
    if which.after.is_none() {
        found.drain(..found.len().saturating_sub(which.limit));
    }
    found.truncate(which.limit);
    Ok(axum::Json(found).into_response())
}

impl Which {
    fn fits(&self, event: &EventInfo) -> bool {
        let kind = event.kind.name();
        let of_kind = |wanted: &str| {
            kind.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.subject.as_ref().is_none_or(|subject| *subject == event.subject)
            && self.tag.as_ref().is_none_or(|tag| event.tag.as_ref() == Some(tag))
            && self.kind.as_deref().is_none_or(of_kind)
    }
}

/// Whether it concerns what the caller may look at.
fn sees(caller: &Caller, event: &EventInfo) -> bool {
    caller.reaches(event.tenant.as_deref(), event.tag.as_deref().unwrap_or_default())
}

/// Somebody who wants to know what happens.
struct Follower {
    engine: Engine,
    caller: Caller,
    which: Which,
    seen: u64,
    news: watch::Receiver<u64>,
    ready: VecDeque<EventInfo>,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn begin(
        service: &Service,
        caller: Caller,
        which: Which,
        headers: &HeaderMap,
    ) -> Result<Self, ApiError> {
        let place = service.followers().try_acquire_owned().map_err(|_| {
            let text = "as many as may follow what happens do so already; ask for the list, or later";
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_followers", text).retry_after(30)
        })?;
        let engine = service.engine().clone();
        let mut news = engine.news();
        // Whatever was written before is looked for at once.
        news.mark_changed();
        let told = headers.get(SEEN).and_then(|value| value.to_str().ok()?.parse().ok());
        let seen = match told.or(which.after.map(Sequence::number)) {
            Some(seen) => seen,
            None => engine.newest_event().await?,
        };
        Ok(Self { engine, caller, which, seen, news, ready: VecDeque::new(), _place: place })
    }

    /// Ends with the controller.
    fn stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut follower| async move {
            let event = follower.next().await?;
            let data = serde_json::to_string(&event).unwrap_or_default();
            let sent = Event::default().id(event.seq.to_string()).event(event.kind.name()).data(data);
            Some((Ok(sent), follower))
        })
    }

    async fn next(&mut self) -> Option<EventInfo> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            self.news.changed().await.ok()?;
            let happened = self.engine.events(self.seen).await.ok()?;
            self.seen = happened.last().map_or(self.seen, |event| event.seq);
            self.ready.extend(happened.into_iter().filter(|e| self.which.fits(e) && sees(&self.caller, e)));
        }
    }
}
