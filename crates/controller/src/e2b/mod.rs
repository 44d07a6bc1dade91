//! The control plane that E2B's clients speak, beside the API of our own. A template is a snapshot, by its tag.
//!
//! ```text
//!   key        who may ask
//!   shapes     the objects, with the names that clients require
//!   error      refusals, as clients parse them
//!   network    what may leave a sandbox, in clients' words
//!   create, life, list, snapshots, insight      the calls
//! ```
//!
//! Statuses are exact: some clients take a success of another number for a failure.

mod create;
mod error;
mod insight;
mod key;
mod life;
mod list;
mod network;
mod shapes;
mod snapshots;

use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::routing::{delete, get, post, put};
use forkd_protocol::names::{NameError, SandboxId};
use http::request::Parts;

pub(crate) use self::error::E2bError;
use crate::access;
use crate::service::Service;

/// What early clients join to a sandbox's id with a dash.
const CLIENT_ID: &str = "forkd";

/// All of its routes; none collides with ours.
pub(crate) fn routes() -> Router<Service> {
    Router::new()
        .route("/sandboxes", post(create::early).get(list::early))
        .route("/v2/sandboxes", post(create::create).get(list::list))
        .route("/sandboxes/{id}", get(list::one).delete(life::kill))
        .route("/sandboxes/{id}/timeout", post(life::timeout))
        .route("/sandboxes/{id}/refreshes", post(life::refresh))
        .route("/sandboxes/{id}/pause", post(life::pause))
        .route("/sandboxes/{id}/resume", post(life::resume))
        .route("/sandboxes/{id}/connect", post(life::connect))
        .route("/v2/sandboxes/{id}/connect", post(life::connect))
        .route("/sandboxes/{id}/fork", post(create::fork))
        .route("/v2/sandboxes/{id}/fork", post(create::fork))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route("/snapshots", get(snapshots::list))
        .route("/templates/{tag}", delete(snapshots::remove))
        .route("/templates/aliases/{tag}", get(snapshots::alias))
        .route("/sandboxes/{id}/metrics", get(insight::metrics))
        .route("/sandboxes/metrics", get(insight::all_metrics))
        .route("/sandboxes/{id}/logs", get(insight::logs))
        .route("/v2/sandboxes/{id}/logs", get(insight::entries))
        .route("/sandboxes/{id}/network", put(life::network))
}

/// Whether a path is one of the control plane's, whatever follows.
pub(crate) fn is_control(path: &str) -> bool {
    let path = path.strip_prefix("/v2").unwrap_or(path);
    let first = path.split('/').nth(1).unwrap_or_default();
    matches!(first, "sandboxes" | "snapshots" | "templates")
}

/// The id of a sandbox, as clients write it.
pub(crate) fn sandbox_id(text: &str) -> Result<SandboxId, NameError> {
    text.strip_suffix(CLIENT_ID).and_then(|id| id.strip_suffix('-')).unwrap_or(text).parse()
}

/// A caller with a key, and the sandbox that is the variable of the path.
pub(super) struct Of(SandboxId);

impl<S: Send + Sync> FromRequestParts<S> for Of {
    type Rejection = E2bError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, E2bError> {
        key::check(&parts.headers)?;
        let Path(id) =
            Path::<String>::from_request_parts(parts, state).await.map_err(E2bError::bad_request)?;
        // What is no id is the id of no sandbox.
        sandbox_id(&id).map(Self).map_err(|_| E2bError::no_sandbox(&id))
    }
}

/// A caller with a key, as the guard knows it.
pub(super) struct Caller(access::Caller);

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = E2bError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, E2bError> {
        key::check(&parts.headers)?;
        let Ok(caller) = access::Caller::from_request_parts(parts, state).await;
        Ok(Self(caller))
    }
}

/// A JSON body; none at all is an empty object, as some clients send it.
pub(super) struct Json<T>(T);

impl<S: Send + Sync, T: serde::de::DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = E2bError;

    async fn from_request(request: Request, state: &S) -> Result<Self, E2bError> {
        let body = axum::body::Bytes::from_request(request, state).await.map_err(E2bError::bad_request)?;
        let text = if body.is_empty() { b"{}" } else { &body[..] };
        serde_json::from_slice(text).map(Self).map_err(E2bError::bad_request)
    }
}
