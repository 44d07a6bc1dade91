//! The REST client: one connection per request over TCP or a Unix socket.

use std::time::Duration;

use bytes::Bytes;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::ErrorBody;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};

use crate::error::{BoxError, CliError};
use crate::tls::{self, Encryption};

/// Longest JSON answer that is read.
const MAX_ANSWER: usize = 256 << 20;
/// Bound of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A request body.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Where requests of one connection go.
pub(crate) type Sender = hyper::client::conn::http1::SendRequest<Body>;

/// Where a controller is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Endpoint {
    Tcp {
        authority: String,
        prefix: String,
    },
    /// The same over TLS.
    Tls {
        authority: String,
        prefix: String,
    },
    Unix(String),
}

/// A client of one controller.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    endpoint: Endpoint,
    token: Option<String>,
    tls: Option<Encryption>,
}

impl Client {
    /// `url` is `http[s]://HOST[:PORT][/PREFIX]` or `unix:/PATH`. The token comes from `FORKD_TOKEN`, or the file
    /// that `FORKD_TOKEN_FILE` names, so that it never shows in a list of processes.
    pub(crate) fn new(url: &str) -> Result<Self, CliError> {
        let endpoint = parse_endpoint(url)?;
        let tls = matches!(endpoint, Endpoint::Tls { .. }).then(tls::encryption).transpose()?;
        Ok(Self { endpoint, token: token()?, tls })
    }

    /// With the token that its owner has, where the person named none.
    pub(crate) fn with_own_token(self, own: impl FnOnce() -> Option<String>) -> Self {
        Self { token: self.token.or_else(own), ..self }
    }

    /// Whether the person named a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// The controller as text, for messages.
    pub(crate) fn endpoint(&self) -> String {
        match &self.endpoint {
            Endpoint::Tcp { authority, prefix } => format!("http://{authority}{prefix}"),
            Endpoint::Tls { authority, prefix } => format!("https://{authority}{prefix}"),
            Endpoint::Unix(path) => format!("unix:{path}"),
        }
    }

    /// `GET path`, answered with JSON.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.json(self.request(Method::GET, path).body(empty())).await
    }

    /// `POST path` with a JSON body, answered with JSON.
    pub(crate) async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, CliError> {
        self.with_body(Method::POST, path, body).await
    }

    /// `PUT path` with a JSON body, answered with JSON.
    pub(crate) async fn put<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, CliError> {
        self.with_body(Method::PUT, path, body).await
    }

    async fn with_body<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
    ) -> Result<T, CliError> {
        let bytes = serde_json::to_vec(body)
            .map_err(|e| CliError::caused(ErrorClass::Internal, "writing the request", e))?;
        let request = self.request(method, path).header(header::CONTENT_TYPE, "application/json");
        self.json(request.body(full(bytes))).await
    }

    /// `POST path` without a body, answered with JSON.
    pub(crate) async fn post_empty<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.json(self.request(Method::POST, path).body(empty())).await
    }

    /// `DELETE path`; what it answers does not matter.
    pub(crate) async fn delete(&self, path: &str) -> Result<(), CliError> {
        self.send(self.request(Method::DELETE, path).body(empty())).await.map(drop)
    }

    /// `GET path`, answered with bytes.
    pub(crate) async fn bytes(&self, path: &str) -> Result<Vec<u8>, CliError> {
        let answer = self.send(self.request(Method::GET, path).body(empty())).await?;
        self.collect(answer).await
    }

    /// Begins a request to `path`.
    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        let (host, uri) = match &self.endpoint {
            Endpoint::Tcp { authority, prefix } | Endpoint::Tls { authority, prefix } => {
                (authority.as_str(), format!("{prefix}{path}"))
            }
            Endpoint::Unix(_) => ("localhost", path.to_owned()),
        };
        let request = Request::builder().method(method).uri(uri).header(header::HOST, host);
        match &self.token {
            Some(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    /// Sends a request and gives the answer back where its status is a success.
    pub(crate) async fn send(
        &self,
        request: http::Result<Request<Body>>,
    ) -> Result<Response<Incoming>, CliError> {
        let request = request.map_err(|e| CliError::caused(ErrorClass::Caller, "forming the request", e))?;
        self.successful(self.exchange(request).await).await
    }

    async fn successful(
        &self,
        answer: Result<Response<Incoming>, BoxError>,
    ) -> Result<Response<Incoming>, CliError> {
        let answer = answer.map_err(|e| self.unreachable(e))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status().as_u16();
        let bytes = self.collect(answer).await?;
        Err(CliError::Api { status, body: error_body(status, &bytes) })
    }

    /// A connection of its own.
    pub(crate) async fn connected(&self) -> Result<Sender, CliError> {
        self.open().await.map_err(|e| self.unreachable(e))
    }

    /// What a request was answered with over whatever connection, as JSON.
    pub(crate) async fn read_json<T: DeserializeOwned>(
        &self,
        answer: Result<Response<Incoming>, BoxError>,
    ) -> Result<T, CliError> {
        let bytes = self.collect(self.successful(answer).await?).await?;
        serde_json::from_slice(&bytes)
            .map_err(|e| CliError::caused(ErrorClass::Internal, "reading the controller's answer", e))
    }

    /// Sends a request whose answer makes the connection another one.
    pub(crate) async fn upgrade(
        &self,
        request: http::Result<Request<Body>>,
    ) -> Result<TokioIo<Upgraded>, CliError> {
        let request = request.map_err(|e| CliError::caused(ErrorClass::Caller, "forming the request", e))?;
        let answer = self.exchange(request).await.map_err(|e| self.unreachable(e))?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = answer.status().as_u16();
            let bytes = self.collect(answer).await?;
            return Err(CliError::Api { status, body: error_body(status, &bytes) });
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|e| self.unreachable(e.into()))?;
        Ok(TokioIo::new(upgraded))
    }

    /// Sends a request whose answer is JSON.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        request: http::Result<Request<Body>>,
    ) -> Result<T, CliError> {
        self.read_json(Ok(self.send(request).await?)).await
    }

    async fn collect(&self, answer: Response<Incoming>) -> Result<Vec<u8>, CliError> {
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        body.map(|b| b.to_bytes().to_vec()).map_err(|e| self.unreachable(e))
    }

    async fn exchange(&self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        Ok(self.open().await?.send_request(request).await?)
    }

    async fn open(&self) -> Result<Sender, BoxError> {
        match &self.endpoint {
            Endpoint::Tcp { authority, .. } => shake_hands(connect(authority).await?).await,
            Endpoint::Tls { authority, .. } => {
                let stream = connect(authority).await?;
                let tls = self.tls.as_ref().ok_or("no TLS was set up")?;
                let encrypted = tls.of(authority, stream);
                shake_hands(tokio::time::timeout(CONNECT_TIMEOUT, encrypted).await??).await
            }
            Endpoint::Unix(path) => shake_hands(UnixStream::connect(path).await?).await,
        }
    }

    fn unreachable(&self, source: BoxError) -> CliError {
        CliError::Unreachable { endpoint: self.endpoint(), source }
    }
}

async fn connect(authority: &str) -> Result<TcpStream, BoxError> {
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(authority)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn token() -> Result<Option<String>, CliError> {
    let told = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    if let Some(token) = told("FORKD_TOKEN") {
        return Ok(Some(token));
    }
    let Some(path) = told("FORKD_TOKEN_FILE") else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .map_err(|e| CliError::io(format!("reading the token {path} (FORKD_TOKEN_FILE)"), e))?;
    Ok(Some(text.trim().to_owned()))
}

async fn shake_hands<S>(stream: S) -> Result<Sender, BoxError>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection.with_upgrades());
    Ok(sender)
}

/// The error a controller (or whatever stands before it) answered.
fn error_body(status: u16, bytes: &[u8]) -> ErrorBody {
    if let Ok(body) = serde_json::from_slice(bytes) {
        return body;
    }
    // The agent words its errors as E2B's does.
    if let Ok(AgentError { code, message }) = serde_json::from_slice(bytes) {
        return ErrorBody { error: message, code, failures: Vec::new() };
    }
    let text: String = String::from_utf8_lossy(bytes).trim().chars().take(500).collect();
    let error = if text.is_empty() { format!("status {status}") } else { format!("status {status}: {text}") };
    ErrorBody { error, code: "unknown".to_owned(), failures: Vec::new() }
}

#[derive(serde::Deserialize)]
struct AgentError {
    code: String,
    message: String,
}

/// No body.
pub(crate) fn empty() -> Body {
    full(Vec::new())
}

/// A body that is there already.
pub(crate) fn full(bytes: Vec<u8>) -> Body {
    Full::new(Bytes::from(bytes)).map_err(|never| match never {}).boxed_unsync()
}

/// A body that is made while it is sent.
pub(crate) fn streamed<S>(stream: S) -> Body
where
    S: futures::Stream<Item = Result<Bytes, BoxError>> + Send + 'static,
{
    http_body_util::StreamBody::new(stream.map(|chunk| chunk.map(hyper::body::Frame::data))).boxed_unsync()
}

fn parse_endpoint(url: &str) -> Result<Endpoint, CliError> {
    let bad = |why: &str| CliError::usage(format!("{url:?} is no controller URL: {why}"));
    if let Some(path) = url.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        return if path.starts_with('/') {
            Ok(Endpoint::Unix(path.to_owned()))
        } else {
            Err(bad("a Unix socket is written unix:/PATH"))
        };
    }
    let (rest, encrypted, port) = if let Some(rest) = url.strip_prefix("https://") {
        (rest, true, 443)
    } else {
        let rest = url.strip_prefix("http://");
        (rest.ok_or_else(|| bad("it begins with http://, https:// or unix:"))?, false, 80)
    };
    let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let parsed: http::uri::Authority = authority.parse().map_err(|_| bad("the host is not one"))?;
    if authority.is_empty() || authority.contains('@') {
        return Err(bad("the host is missing or names a user"));
    }
    let authority =
        if parsed.port().is_some() { authority.to_owned() } else { format!("{authority}:{port}") };
    let prefix = prefix.trim_end_matches('/').to_owned();
    Ok(if encrypted { Endpoint::Tls { authority, prefix } } else { Endpoint::Tcp { authority, prefix } })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(authority: &str, prefix: &str) -> Endpoint {
        Endpoint::Tcp { authority: authority.into(), prefix: prefix.into() }
    }

    #[test]
    fn endpoints_are_read_as_written() {
        assert_eq!(parse_endpoint("http://127.0.0.1:8889/").unwrap(), tcp("127.0.0.1:8889", ""));
        assert_eq!(parse_endpoint("http://[::1]:1/x/").unwrap(), tcp("[::1]:1", "/x"));
        assert_eq!(parse_endpoint("http://host").unwrap(), tcp("host:80", ""));
        assert_eq!(parse_endpoint("unix:/run/f.sock").unwrap(), Endpoint::Unix("/run/f.sock".into()));
        assert_eq!(parse_endpoint("unix:///run/f.sock").unwrap(), Endpoint::Unix("/run/f.sock".into()));
        for bad in ["", "host:1", "https://", "http://", "http://u@h", "unix:rel", "http://a b"] {
            assert!(parse_endpoint(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_answer_that_is_not_ours_still_says_something() {
        assert_eq!(error_body(502, b"<html>bad gateway").error, "status 502: <html>bad gateway");
        assert_eq!(error_body(500, b"").error, "status 500");
        assert_eq!(error_body(404, br#"{"error":"no","code":"not_found"}"#).code, "not_found");
    }
}
