//! The host's side of the agent: HTTP/1.1 over the monitor's vsock socket.
//!
//! Everything that comes back is the guest's and hostile: each answer is bounded in size and each call in
//! time, and connections belong to one life of one sandbox, never to an address.

mod connection;
mod error;
mod hop;
mod streamed;
mod translate;
mod tunnel;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forkd_protocol::guest::{Freeze, Frozen, GuestSecret, PATH_FREEZE, PATH_THAW, Thaw};
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Method, Request, Response, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

pub use error::GuestError;
pub use hop::drop_hop_headers;
pub use streamed::{Streamed, Tunnel};
pub(crate) use translate::{
    error_line, eval_request, eval_response, exec_bounds, exec_request, exec_response, ping_response,
};

use connection::Connection;

use crate::config::Bounds;

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A request body to pass on.
pub type Body = BoxBody<Bytes, BoxError>;

/// Bound of answers that carry no output.
pub(crate) const SMALL_ANSWER: usize = 256 * 1024;
/// Connections of one sandbox that are kept for the next call.
const MAX_IDLE: usize = 4;
/// Connections idle for longer are not used again: an agent closes them after 30 s.
const IDLE_FOR: Duration = Duration::from_secs(20);
/// More than all buffers hold that a guest's kernel has for what comes: 128 of 4 KiB.
const FILLER: usize = 1 << 20;
/// JSON longer than this is parsed beside the runtime's threads.
const PARSE_ASIDE: usize = 256 * 1024;

/// What a call may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// From asking to the last byte; for ever where the caller said so.
    pub(crate) time: Option<Duration>,
    /// Of the answer's body.
    pub(crate) bytes: usize,
}

impl Limits {
    pub(crate) fn small(time: Duration) -> Self {
        Self { time: Some(time), bytes: SMALL_ANSWER }
    }
}

/// The agent of one sandbox, in one life of it.
#[derive(Debug)]
pub(crate) struct Guest {
    socket: PathBuf,
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    connections: Vec<(Connection, Instant)>,
    closed: bool,
}

impl Guest {
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket, idle: Mutex::default() }
    }

    /// `POST` of a verb, JSON both ways.
    pub(crate) async fn post<Q, A>(
        &self,
        path: &'static str,
        question: &Q,
        limits: Limits,
    ) -> Result<A, GuestError>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned + Send + 'static,
    {
        self.call(path, question_of(path, question)?, limits).await
    }

    /// The same with something that is not to stay in the buffers of a connection: over one that ends with it.
    pub(crate) async fn post_once<Q, A>(
        &self,
        path: &'static str,
        question: &Q,
        limits: Limits,
    ) -> Result<A, GuestError>
    where
        Q: Serialize + Sync,
        A: DeserializeOwned + Send + 'static,
    {
        let mut request = question_of(path, question)?;
        request.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        self.call(path, request, limits).await
    }

    /// Has the agent make its workload stand still. It keeps the bound; one that does not is noticed a little later.
    pub(crate) async fn freeze(&self, bounds: &Bounds) -> Result<Frozen, GuestError> {
        let timeout_ms = Some(u64::try_from(bounds.freeze.as_millis()).unwrap_or(u64::MAX));
        let limits = Limits::small(bounds.freeze + bounds.guest_grace);
        self.post(PATH_FREEZE, &Freeze { timeout_ms }, limits).await
    }

    /// Lets the workload go on, with these secrets. One that does not stand still does not notice.
    pub(crate) async fn thaw(&self, bounds: &Bounds, secrets: Vec<GuestSecret>) -> Result<(), GuestError> {
        let limits = Limits::small(bounds.guest_grace);
        let thaw = Thaw { secrets };
        if thaw.secrets.is_empty() {
            return self.post::<_, serde_json::Value>(PATH_THAW, &thaw, limits).await.map(drop);
        }
        self.post_once::<_, serde_json::Value>(PATH_THAW, &thaw, limits).await.map(drop)
    }

    /// Has what passed the buffers of the guest's kernel overwritten by a word that says nothing, at length.
    pub(crate) async fn flush(&self, bounds: &Bounds) -> Result<(), GuestError> {
        let mut json = b"{}".to_vec();
        json.resize(FILLER, b' ');
        let body = Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed();
        let request = own_request(Method::POST, PATH_THAW, body)?;
        self.call::<serde_json::Value>(PATH_THAW, request, Limits::small(bounds.guest_grace)).await.map(drop)
    }

    /// `GET` of JSON.
    pub(crate) async fn get<A>(&self, path: &'static str, limits: Limits) -> Result<A, GuestError>
    where
        A: DeserializeOwned + Send + 'static,
    {
        let body = Empty::new().map_err(|never| match never {}).boxed();
        self.call(path, own_request(Method::GET, path, body)?, limits).await
    }

    /// Passes a request on as it is, streaming both ways, over a connection of its own. Bounded by whoever
    /// reads the answer.
    pub(crate) async fn pass(
        &self,
        mut request: Request<Body>,
        connect: Duration,
    ) -> Result<Response<Incoming>, GuestError> {
        drop_hop_headers(request.headers_mut());
        *request.uri_mut() = origin_form(request.uri())?;
        request.headers_mut().insert(HOST, HeaderValue::from_static("agent"));
        let connecting = Connection::open(&self.socket);
        let mut connection =
            timeout(connect, connecting).await.map_err(|_| GuestError::late("connect", connect))??;
        let mut response = connection.send(request).await.map_err(|(e, _)| e)?;
        drop_hop_headers(response.headers_mut());
        // The connection ends with the body that still streams out of it.
        connection.let_go();
        Ok(response)
    }

    /// A connection is made and kept for the next call. Fails where the agent does not accept yet.
    pub(crate) async fn reach(&self) -> Result<(), GuestError> {
        let connection = Connection::open(&self.socket).await?;
        self.put_back(connection);
        Ok(())
    }

    /// Another life begins: connections are kept again.
    pub(crate) fn open(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).closed = false;
    }

    /// Ends all idle connections and keeps none from now on: this life is over.
    pub(crate) fn close(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.closed = true;
        idle.connections.clear();
    }

    async fn call<A>(
        &self,
        path: &'static str,
        request: Request<Body>,
        limits: Limits,
    ) -> Result<A, GuestError>
    where
        A: DeserializeOwned + Send + 'static,
    {
        let Some(time) = limits.time else { return self.exchange(request, limits.bytes).await };
        timeout(time, self.exchange(request, limits.bytes)).await.map_err(|_| GuestError::late(path, time))?
    }

    async fn exchange<A>(&self, request: Request<Body>, max: usize) -> Result<A, GuestError>
    where
        A: DeserializeOwned + Send + 'static,
    {
        let (connection, response) = self.send(request).await?;
        let status = response.status();
        let closes = response.headers().get(CONNECTION).is_some_and(|value| value == "close");
        let body = match Limited::new(response.into_body(), max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(e) if e.is::<LengthLimitError>() => return Err(GuestError::TooLarge { max }),
            Err(e) => return Err(GuestError::BrokeOff(e)),
        };
        if !closes {
            self.put_back(connection);
        }
        if status.is_success() { parse(body).await } else { Err(GuestError::refused(status, &body)) }
    }

    /// Over an idle connection where one still works, else over a new one. A request that was not written yet
    /// when its connection turned out to be closed goes over the next; one that was is never sent twice.
    async fn send(&self, mut request: Request<Body>) -> Result<(Connection, Response<Incoming>), GuestError> {
        while let Some(mut connection) = self.take_idle() {
            match connection.send(request).await {
                Ok(response) => return Ok((connection, response)),
                Err((_, Some(unsent))) => request = unsent,
                Err((e, None)) => return Err(e),
            }
        }
        let mut connection = Connection::open(&self.socket).await?;
        match connection.send(request).await {
            Ok(response) => Ok((connection, response)),
            Err((e, _)) => Err(e),
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.connections.retain(|(connection, since)| connection.is_open() && since.elapsed() < IDLE_FOR);
        idle.connections.pop().map(|(connection, _)| connection)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if !idle.closed && connection.is_open() && idle.connections.len() < MAX_IDLE {
            idle.connections.push((connection, Instant::now()));
        }
    }
}

fn question_of(path: &'static str, question: &impl Serialize) -> Result<Request<Body>, GuestError> {
    let json = serde_json::to_vec(question).map_err(GuestError::Malformed)?;
    let body = Full::new(Bytes::from(json)).map_err(|never| match never {}).boxed();
    own_request(Method::POST, path, body)
}

fn own_request(method: Method, path: &'static str, body: Body) -> Result<Request<Body>, GuestError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "agent")
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(GuestError::BadRequest)
}

/// Only path and query: the agent is no proxy.
fn origin_form(uri: &Uri) -> Result<Uri, GuestError> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    path.parse().map_err(|e: http::uri::InvalidUri| GuestError::BadRequest(e.into()))
}

async fn parse<A: DeserializeOwned + Send + 'static>(body: Bytes) -> Result<A, GuestError> {
    if body.len() <= PARSE_ASIDE {
        return serde_json::from_slice(&body).map_err(GuestError::Malformed);
    }
    let parsing = tokio::task::spawn_blocking(move || serde_json::from_slice(&body));
    parsing.await.map_err(|e| GuestError::BrokeOff(e.into()))?.map_err(GuestError::Malformed)
}
