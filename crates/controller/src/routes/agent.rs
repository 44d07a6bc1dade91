//! Everything that a sandbox's agent serves itself, passed through and streamed both ways.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use forkd_engine::{BoxError, Engine};
use forkd_protocol::names::SandboxId;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use http_body_util::BodyExt;
use hyper::body::Frame;

use crate::error::ApiError;
use crate::extract::Name;

/// Becomes `authorization` at the agent; the header of that name is for the controller.
const AGENT_AUTHORIZATION: HeaderName = HeaderName::from_static("x-agent-authorization");
/// The agent's verbs that belong to the engine: they decide who a sandbox is and whether it runs.
const RESERVED: &str = "forkd";

/// What the sandbox's agent serves
///
/// E2B's sandbox API, and files; streamed both ways, whatever the method and the body. `x-agent-authorization` becomes
/// the agent's `authorization`.
#[utoipa::path(
    method(get, post), path = "/v1/sandboxes/{id}/agent/{path}", operation_id = "pass_to_agent", tag = "sandboxes",
    params(("id" = String, Path), ("path" = String, Path, description = "what follows goes on as it is written")),
    responses((status = "default", description = "as the agent answers; errors of forkd as everywhere"))
)]
pub(crate) async fn pass(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
    request: Request,
) -> Result<Response, ApiError> {
    let (mut parts, body) = request.into_parts();
    parts.uri = agent_uri(&parts.uri)?;
    exchange_authorization(&mut parts.headers);
    let answer = engine.agent_request(&id, Request::from_parts(parts, shareable(body))).await?;
    let mut answer = answer.map(Body::new).into_response();
    distrust(answer.headers_mut());
    Ok(answer)
}

/// What a guest answers under the API's own address is no page of the API's: a browser gives it an origin of its own,
/// from which nothing of the controller's can be asked, and takes it for nothing else than it says it is.
pub(super) fn distrust(headers: &mut HeaderMap) {
    let alone = "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads";
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(alone));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

/// A body as the engine takes it.
pub(crate) fn shareable(body: Body) -> forkd_engine::Body {
    Shareable(Mutex::new(body)).boxed()
}

/// A body that may be looked at from several threads, as the engine wants it. It never is: the lock is only
/// ever reached through a unique reference.
struct Shareable(Mutex<Body>);

impl hyper::body::Body for Shareable {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let body = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        Pin::new(body).poll_frame(context).map_err(Into::into)
    }
}

pub(super) fn exchange_authorization(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    headers.remove("x-api-key");
    if let Some(own) = headers.remove(AGENT_AUTHORIZATION) {
        headers.insert(header::AUTHORIZATION, own);
    }
}

/// What follows `/v1/sandboxes/{id}/agent`, as it was written.
fn agent_uri(uri: &Uri) -> Result<Uri, ApiError> {
    let path = uri.path().splitn(6, '/').nth(5).unwrap_or_default();
    if is_reserved(path) {
        let text = "the agent's own verbs are not passed on; there is an API route for each";
        return Err(ApiError::new(StatusCode::NOT_FOUND, "reserved", text));
    }
    let query = uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    format!("/{path}{query}")
        .parse()
        .map_err(|_| ApiError::bad_request("the path for the agent is not valid"))
}

/// Whether the path means the engine's verbs however it is written: the agent may decode or tidy it up.
pub(crate) fn is_reserved(path: &str) -> bool {
    // No other path of the agent's needs these, so nothing is lost by refusing what could hide a name.
    let segments = path.split('/');
    let first = segments.clone().find(|s| !matches!(*s, "" | "."));
    first.is_some_and(|s| s.eq_ignore_ascii_case(RESERVED) || s.contains('%'))
        || segments.clone().any(|s| s == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_path_and_the_query_go_on_as_written() {
        let uri = |text: &str| agent_uri(&text.parse().unwrap()).unwrap().to_string();
        assert_eq!(uri("/v1/sandboxes/sb-1/agent/process.Process/Start"), "/process.Process/Start");
        assert_eq!(uri("/v1/sandboxes/sb-1/agent/files?path=%2Fa%20b"), "/files?path=%2Fa%20b");
        assert_eq!(uri("/v1/sandboxes/sb-1/agent/"), "/");
    }

    #[test]
    fn the_verbs_of_the_engine_stay_its_own_however_they_are_written() {
        for path in
            ["forkd/v1/identity", "/forkd/v1/freeze", "./forkd", "%66orkd/v1/thaw", "x/../forkd/v1/thaw"]
        {
            let uri: Uri = format!("/v1/sandboxes/sb-1/agent/{path}").parse().unwrap();
            assert!(agent_uri(&uri).is_err(), "{path}");
        }
    }

    #[test]
    fn the_agent_never_sees_the_controllers_token() {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "Bearer secret".parse().unwrap());
        headers.insert("x-api-key", "secret".parse().unwrap());
        exchange_authorization(&mut headers);
        assert!(headers.is_empty());
        headers.insert(AGENT_AUTHORIZATION, "Basic cm9vdDo=".parse().unwrap());
        exchange_authorization(&mut headers);
        assert_eq!(headers[header::AUTHORIZATION], "Basic cm9vdDo=");
        assert_eq!(headers.len(), 1);
    }
}
