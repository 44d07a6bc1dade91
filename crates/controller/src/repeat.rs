//! `Idempotency-Key`: whoever asks again with the same key gets the first answer, and nothing is made twice.
//!
//! What was asked for with a key goes on where its client leaves; the answer waits for whoever asks again. A key belongs
//! to the token that it came with. Answers are kept for a day; what failed for want of something, or may be granted another
//! time, is not kept and may be asked for again.

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forkd_engine::EngineError;
use forkd_store::{Answered, KeyState, Store, StoreError};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};

use crate::access::Caller;
use crate::e2b::E2bError;
use crate::error::ApiError;
use crate::service::{Service, blocking};

/// The header.
pub(crate) const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Set on an answer that was given before.
pub(crate) const REPEATED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Longest key.
pub(crate) const LONGEST_KEY: usize = 255;
/// Longest request with a key, bytes.
const LONGEST_BODY: usize = 1 << 20;
/// Longest answer that is kept, bytes: more than that of a thousand children with labels.
const LONGEST_ANSWER: usize = 4 << 20;
/// How long answers are kept, seconds; how many; and how many bytes of them.
const KEPT: (u64, u64, u64) = (86_400, 10_000, 256 << 20);
/// Routes whose calls make something, as the router has them.
pub(crate) const CREATING: &[&str] = &[
    "/v1/snapshots",
    "/v1/snapshots/{tag}/compact",
    "/v1/sandboxes",
    "/v1/sandboxes/{id}/branch",
    "/v1/workspaces",
    "/sandboxes",
    "/v2/sandboxes",
    "/sandboxes/{id}/fork",
    "/v2/sandboxes/{id}/fork",
    "/sandboxes/{id}/snapshots",
];
/// Refusals that another time may not be.
const PASSING: [StatusCode; 5] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::CONFLICT,
    StatusCode::TOO_MANY_REQUESTS,
];

/// Attends to a call with a key; all others go on.
pub(crate) async fn repeat(State(service): State<Service>, request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let creates = request.method() == Method::POST && route.is_some_and(|route| CREATING.contains(&route));
    let Some(key) = request.headers().get(KEY).filter(|_| creates).cloned() else {
        return next.run(request).await;
    };
    let control = crate::e2b::is_control(request.uri().path());
    let refuse = |e: ApiError| if control { E2bError::from(e).into_response() } else { e.into_response() };
    attend(&service, &key, request, next).await.unwrap_or_else(refuse)
}

async fn attend(
    service: &Service,
    key: &HeaderValue,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let key = key_of(key, request.headers())?;
    let owner = request.extensions().get::<Caller>().map(|caller| caller.name.clone()).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, LONGEST_BODY).await.map_err(|_| {
        let text = format!("with a key a request has at most {LONGEST_BODY} bytes");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
    })?;
    let asked = hash_of(&parts.method, &parts.uri, &body);
    let slot = Slot { store: service.engine().store().clone(), owner, key };
    let request = Request::from_parts(parts, Body::from(body));
    // Beside this future, which ends where the client leaves.
    let work = tokio::spawn(async move {
        match slot.take(asked).await? {
            KeyState::New => Ok(carry_out(slot, request, next).await),
            state => again(state),
        }
    });
    work.await.map_err(|_| ApiError::from(EngineError::Broken))?
}

/// A key that is visible text, on a call that is answered once.
fn key_of(key: &HeaderValue, headers: &HeaderMap) -> Result<String, ApiError> {
    let text = key.to_str().unwrap_or_default();
    if !(1..=LONGEST_KEY).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
        let text = format!("an Idempotency-Key is 1 to {LONGEST_KEY} visible characters");
        return Err(ApiError::bad_request(text));
    }
    if crate::progress::wants_events(headers) {
        let text = "an answer in events is not kept: leave the key out, or ask for JSON";
        return Err(ApiError::bad_request(text));
    }
    Ok(text.to_owned())
}

fn hash_of(method: &Method, uri: &http::Uri, body: &Bytes) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(format!("{method} {uri}\n").as_bytes());
    hasher.update(body);
    hasher.finalize().to_hex().to_string()
}

/// What a key that is taken stands for.
fn again(state: KeyState) -> Result<Response, ApiError> {
    match state {
        KeyState::Answered(answer) => Ok(given(answer)),
        KeyState::Other => Err(ApiError::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "key_reused",
            "this Idempotency-Key was used for another request; take a new one",
        )),
        KeyState::New | KeyState::InFlight => Err(ApiError::new(
            StatusCode::CONFLICT,
            "in_flight",
            "the first request with this Idempotency-Key is under way; ask again for its answer",
        )),
    }
}

fn given(answer: Answered) -> Response {
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::OK);
    let mut response = (status, answer.body).into_response();
    let headers = response.headers_mut();
    if let Some(Ok(kind)) = answer.content_type.map(HeaderValue::try_from) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    headers.insert(REPEATED, HeaderValue::from_static("true"));
    response
}

/// Does what was asked for and keeps the answer.
async fn carry_out(slot: Slot, request: Request, next: Next) -> Response {
    let mut held = Held(Some(slot));
    let (parts, body) = next.run(request).await.into_parts();
    // Answers of these routes are in memory already, whatever their length.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else {
        return ApiError::from(EngineError::Broken).into_response();
    };
    if !parts.status.is_server_error() && !PASSING.contains(&parts.status) {
        held.keep(answered(parts.status, &parts.headers, &body)).await;
    }
    Response::from_parts(parts, Body::from(body))
}

/// What is told to whoever asks again.
fn answered(status: StatusCode, headers: &HeaderMap, body: &Bytes) -> Answered {
    if body.len() > LONGEST_ANSWER {
        let text = "it was done, but its answer was too long to be kept; what was made is in the lists";
        let body = serde_json::json!({ "error": text, "code": "answer_too_long" }).to_string().into_bytes();
        let content_type = Some("application/json".to_owned());
        return Answered { status: StatusCode::CONFLICT.as_u16(), content_type, body };
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    Answered { status: status.as_u16(), content_type: content_type.map(str::to_owned), body: body.to_vec() }
}

/// A key in the registry.
#[derive(Clone)]
struct Slot {
    store: Store,
    owner: String,
    key: String,
}

impl Slot {
    async fn take(&self, asked: String) -> Result<KeyState, ApiError> {
        let slot = self.clone();
        Ok(blocking(move || slot.store.take_key(&slot.owner, &slot.key, &asked)).await??)
    }
}

/// A key that is this request's, given back where there is no answer to keep.
struct Held(Option<Slot>);

impl Held {
    async fn keep(&mut self, answer: Answered) {
        let Some(slot) = self.0.clone() else { return };
        let kept = blocking(move || -> Result<(), StoreError> {
            slot.store.answer_key(&slot.owner, &slot.key, &answer)?;
            let (seconds, most, bytes) = KEPT;
            slot.store.forget_keys(seconds, most, bytes)
        });
        match kept.await {
            Ok(Ok(())) => self.0 = None,
            // The key is given back: whoever asks again is told by what is refused what is there.
            Ok(Err(e)) => tracing::warn!(error = %e, "an answer was not kept for its key"),
            Err(_) => {}
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(slot) = self.0.take() else { return };
        let free = move || {
            // It does nothing where there is an answer.
            if let Err(e) = slot.store.free_key(&slot.owner, &slot.key) {
                tracing::warn!(error = %e, "a key stays taken until the next start");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(free)),
            Err(_) => free(),
        }
    }
}
