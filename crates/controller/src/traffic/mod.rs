//! Traffic for sandboxes that arrives under their own addresses rather than the API's.
//!
//! ```text
//!   target   which sandbox and port a request is for: two headers on one origin, or a host name `<port>-<id>.<domain>`
//!   signed   or a file's address that was signed with a sandbox's token and names none
//!            or a call of the agent with a sandbox's token
//!   gone     the answer where there is no such sandbox, or nothing listens
//! ```
//!
//! Whoever has the sandbox's tokens is let in; no key of the API is asked for. Where a sandbox has none, its agent
//! answers no page but the controller's own: a browser would ask it in the name of whoever sits before it.

mod gone;
mod signed;
mod target;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forkd_engine::{Access, Engine, EngineError};
use forkd_protocol::guest::PORT_NOT_OPEN;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName};

use self::gone::Gone;
use self::target::Target;
use crate::proxy::forward;
use crate::routes::agent;
use crate::service::Service;

/// Where clients expect the agent.
const AGENT: u16 = 49983;
/// Where they expect interpreters; the agent serves them.
const INTERPRETER: u16 = 49999;

const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-access-token");
const TRAFFIC_TOKEN: HeaderName = HeaderName::from_static("e2b-traffic-access-token");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Serves what is meant for a sandbox; everything else is the API's.
pub(crate) async fn divert(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let engine = service.engine();
    let target = match Target::of(&request) {
        Ok(Some(target)) => target,
        Ok(None) => match signed::find(engine, request.uri()).or_else(|| by_token(engine, &request)) {
            Some(target) => target,
            None => return next.run(request).await,
        },
        Err(gone) => return gone.into_response(),
    };
    signed::verify(engine, &target, &mut request);
    let is_own_page = service.hosts().is_own_page(request.headers());
    serve(engine, &target, request, is_own_page).await.unwrap_or_else(IntoResponse::into_response)
}

/// Whether a host name, with or without a port, is a sandbox's.
pub(crate) fn is_of_sandbox(host: &str) -> bool {
    Target::names(host)
}

/// The sandbox whose token a call of the agent carries: clients of some age name none once they have connected to it
/// anew.
fn by_token(engine: &Engine, request: &Request) -> Option<Target> {
    let path = request.uri().path();
    let of_agent = ["/process.Process/", "/filesystem.Filesystem/", "/files"];
    let given = request.headers().get(ACCESS_TOKEN)?.to_str().ok()?;
    let its = |access: &Access| !access.open && access.admits(Some(given));
    let (id, _) = engine.accesses().into_iter().find(|(_, access)| its(access))?;
    of_agent.iter().any(|start| path.starts_with(start)).then_some(Target { id, port: AGENT })
}

async fn serve(
    engine: &Engine,
    target: &Target,
    mut request: Request,
    is_own_page: bool,
) -> Result<Response, Gone> {
    let access = engine.access(&target.id).map_err(|_| Gone::unknown(target))?;
    admit(&access, target, &request, is_own_page)?;
    engine.wake_for_traffic(&target.id).await.map_err(|e| Gone::not_running(target, &e))?;
    if matches!(target.port, AGENT | INTERPRETER) {
        if agent::is_reserved(request.uri().path().trim_start_matches('/')) {
            return Err(Gone::reserved(target));
        }
        drop_secrets(request.headers_mut());
        return pass(engine, target, request).await.map_err(|e| Gone::failed(target, &e));
    }
    request.headers_mut().remove(TRAFFIC_TOKEN);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let tunnel = engine.open_port(&target.id, target.port).await;
    let tunnel = tunnel.map_err(|e| {
        if e.code() == PORT_NOT_OPEN { Gone::closed(target) } else { Gone::failed(target, &e) }
    })?;
    forward(tunnel, request, &path).await.map_err(|e| Gone::no_answer(target, &e))
}

async fn pass(engine: &Engine, target: &Target, request: Request) -> Result<Response, EngineError> {
    let (parts, body) = request.into_parts();
    let answer = engine.agent_request(&target.id, Request::from_parts(parts, agent::shareable(body))).await?;
    Ok(answer.map(Body::new).into_response())
}

/// Whether the request has what the port asks for. `is_own_page`: no page of anybody else's sends it.
fn admit(access: &Access, target: &Target, request: &Request, is_own_page: bool) -> Result<(), Gone> {
    let given = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let path = request.uri().path();
    let signed = request.extensions().get::<signed::Verified>().is_some();
    match target.port {
        AGENT | INTERPRETER if access.open && !is_own_page => Err(Gone::foreign_page(target)),
        // Clients ask for its health without a token.
        AGENT if path == "/health" || signed => Ok(()),
        AGENT => access.admits(given(ACCESS_TOKEN)).then_some(()).ok_or(Gone::no_token(target)),
        // Of the interpreter's calls, clients send the token with this one only.
        INTERPRETER if path == "/execute" && !access.admits(given(ACCESS_TOKEN)) => {
            Err(Gone::no_token(target))
        }
        _ => access.admits_traffic(given(TRAFFIC_TOKEN)).then_some(()).ok_or(Gone::no_traffic_token(target)),
    }
}

/// The guest gets no token of the host's; the user that its agent is to take on is named in basic credentials.
fn drop_secrets(headers: &mut HeaderMap) {
    for name in [ACCESS_TOKEN, TRAFFIC_TOKEN, API_KEY] {
        headers.remove(name);
    }
    let basic = |value: &http::HeaderValue| value.to_str().is_ok_and(|v| v.starts_with("Basic "));
    if headers.get(AUTHORIZATION).is_some_and(|value| !basic(value)) {
        headers.remove(AUTHORIZATION);
    }
}
