//! The layer around all routes: who asks, whether they may, and a line in the audit log about what they changed.

use std::net::SocketAddr;
use std::time::Instant;

use axum::extract::{ConnectInfo, FromRequestParts, MatchedPath, RawPathParams, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forkd_engine::Engine;
use forkd_protocol::names::{SandboxId, Tag};
use http::{HeaderMap, HeaderName, Method, StatusCode, header};

use super::{Caller, Reach, Rule, rule_of};
use crate::audit::{Deferred, Made, Ticket};
use crate::clock::unix_now;
use crate::e2b::E2bError;
use crate::error::ApiError;
use crate::service::Service;

/// Where tokens may stand beside `Authorization`, for clients of E2B's API.
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Came to a loopback address: somebody on this computer, or whom it forwards.
    Loopback(SocketAddr),
    /// Came over TLS.
    Tls(SocketAddr),
    /// Came to the Unix socket, which only its owner and root can open.
    Unix {
        /// User of the other process.
        uid: u32,
    },
    /// Came past all listeners.
    Unknown,
}

impl Peer {
    /// For the audit log.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Loopback(address) => address.to_string(),
            Self::Tls(address) => format!("tls:{address}"),
            Self::Unix { uid } => format!("unix:uid={uid}"),
            Self::Unknown => "unknown".to_owned(),
        }
    }
}

/// Asks everything that is to be asked before a request is attended to.
pub(crate) async fn guard(State(service): State<Service>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map_or(Peer::Unknown, |peer| peer.0.clone());
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let rule = rule_of(request.method().as_str(), route.as_deref().unwrap_or_default());
    let ticket = is_change(request.method()).then(|| {
        let what = format!("{} {}", request.method(), route.as_deref().unwrap_or("?"));
        Ticket::new(service.audit().clone(), what, request.uri().path(), peer.name(), began)
    });
    let (mut response, caller) = attend(&service, &peer, rule, request, next).await;
    if let Some(mut ticket) = ticket {
        if let Some(caller) = &caller {
            ticket.by(caller);
        }
        if let Some(Made(made)) = response.extensions_mut().remove::<Made>() {
            ticket.made(made);
        }
        match response.extensions_mut().remove::<Deferred>() {
            Some(deferred) => deferred.finish_later(ticket),
            None => ticket.finish(response.status()).await,
        }
    }
    response
}

fn is_change(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

async fn attend(
    service: &Service,
    peer: &Peer,
    rule: Rule,
    request: Request,
    next: Next,
) -> (Response, Option<Caller>) {
    let (mut parts, body) = request.into_parts();
    // Clients of E2B's control plane parse its own shape.
    let control = crate::e2b::is_control(parts.uri.path());
    let refuse = |e: ApiError| if control { E2bError::from(e).into_response() } else { e.into_response() };
    let caller = match identify(service, peer, rule, &parts) {
        Ok(caller) => caller,
        Err(e) => return (refuse(e), None),
    };
    if let Err(e) = admit(service.engine(), &caller, rule, &mut parts).await {
        return (refuse(e), Some(caller));
    }
    parts.extensions.insert(caller.clone());
    (next.run(Request::from_parts(parts, body)).await, Some(caller))
}

/// Who asks.
fn identify(
    service: &Service,
    peer: &Peer,
    rule: Rule,
    parts: &http::request::Parts,
) -> Result<Caller, ApiError> {
    if matches!(peer, Peer::Loopback(_))
        && let Some(objection) = service.hosts().objection(&parts.uri, &parts.headers)
    {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign_host", objection));
    }
    let now = unix_now();
    if let Some(credential) = credential(&parts.headers)
        && (rule.reach != Reach::Public || service.keyring().demands())
    {
        if let Some(caller) = service.keyring().find(credential, now) {
            return Ok(caller);
        }
        // E2B's clients always send a key: where none is demanded any is as good as none.
        if rule.reach != Reach::Public && (service.keyring().demands() || matches!(peer, Peer::Tls(_))) {
            return Err(ApiError::unauthorized("this token is unknown, revoked or expired"));
        }
    }
    match peer {
        Peer::Unix { .. } => Ok(Caller::trusted("owner")),
        Peer::Loopback(_) if !service.keyring().demands() => Ok(Caller::trusted("open")),
        _ if rule.reach == Reach::Public => Ok(Caller::nobody()),
        _ => Err(ApiError::unauthorized(
            "a token is needed: send `Authorization: Bearer TOKEN` (forkd: FORKD_TOKEN or FORKD_TOKEN_FILE)",
        )),
    }
}

fn credential(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    });
    bearer.or_else(|| headers.get(API_KEY)?.to_str().ok()).filter(|token| !token.is_empty())
}

/// Whether they may.
async fn admit(
    engine: &Engine,
    caller: &Caller,
    rule: Rule,
    parts: &mut http::request::Parts,
) -> Result<(), ApiError> {
    if rule.reach == Reach::Public {
        return Ok(());
    }
    if caller.scope < rule.scope {
        let text = format!("this needs a token of scope {}; this one has {}", rule.scope, caller.scope);
        return Err(ApiError::new(StatusCode::FORBIDDEN, "scope_too_small", text));
    }
    if !caller.is_bound() {
        return Ok(());
    }
    match rule.reach {
        Reach::Public | Reach::Nothing | Reach::Own => Ok(()),
        Reach::Whole => Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "token_is_bound",
            "this reaches everything there is, and the token is bound to a tenant or to tags",
        )),
        Reach::Sandbox => {
            let id: SandboxId = crate::e2b::sandbox_id(&first_variable(parts).await?)?;
            sandbox_of(engine, caller, &id).map(drop)
        }
        Reach::Snapshot | Reach::SnapshotChange => {
            let tag: Tag = first_variable(parts).await?.parse()?;
            snapshot_of(engine, caller, &tag, rule.reach == Reach::SnapshotChange).await
        }
    }
}

async fn first_variable(parts: &mut http::request::Parts) -> Result<String, ApiError> {
    let params = RawPathParams::from_request_parts(parts, &()).await?;
    Ok(params.iter().next().map_or("", |(_, value)| value).to_owned())
}

/// A sandbox that this caller may see; to others it is not there.
pub(crate) fn sandbox_of(
    engine: &Engine,
    caller: &Caller,
    id: &SandboxId,
) -> Result<forkd_protocol::rest::SandboxInfo, ApiError> {
    let missing = || ApiError::not_found(format!("there is no sandbox {:?}", id.as_str()));
    let info = engine.sandbox(id)?;
    if caller.sees(&info) { Ok(info) } else { Err(missing()) }
}

/// Whether a snapshot may be used, or changed, by this caller; one that may not even be looked at is not there.
pub(crate) async fn snapshot_of(
    engine: &Engine,
    caller: &Caller,
    tag: &Tag,
    change: bool,
) -> Result<(), ApiError> {
    if !caller.is_bound() {
        return Ok(());
    }
    let asked = tag.clone();
    let store = engine.store().clone();
    let owner = crate::service::blocking(move || store.tag_owner(&asked)).await??;
    if !caller.uses(tag.as_str(), owner.as_deref()) {
        return Err(ApiError::not_found(format!("there is no snapshot {:?}", tag.as_str())));
    }
    if change && !caller.changes(tag.as_str(), owner.as_deref()) {
        let text = format!("the snapshot {tag} is shared; this token may fork from it, and no more");
        return Err(ApiError::new(StatusCode::FORBIDDEN, "snapshot_is_shared", text));
    }
    Ok(())
}
