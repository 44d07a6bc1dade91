//! Which handler answers a request. Nothing is decided here but that.

use std::rc::Rc;

use forkd_protocol::guest;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::body::{Body, Response};
use super::verbs;
use crate::agent::Agent;
use crate::contexts;
use crate::e2b::{self, facts, files, filesystem, metrics, process, tar, upload};

pub(super) async fn route(agent: Rc<Agent>, request: Request<Incoming>) -> Response {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, guest::PATH_HEALTH) => verbs::health(&agent).await,
        (&Method::GET, guest::PATH_TAR) => tar::pack(&agent, request).await,
        (&Method::POST, guest::PATH_TAR) => tar::unpack(&agent, request).await,
        (&Method::POST, verb) if verb.starts_with("/forkd/") => verbs::answer(agent, verb, request).await,
        (&Method::GET, "/health") => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        (&Method::POST, "/execute") => contexts::execute(&agent.contexts, request).await,
        (_, path) if path == "/contexts" || path.starts_with("/contexts/") => {
            contexts::manage(&agent.contexts, request).await
        }
        (&Method::GET, "/envs") => facts::variables(&agent),
        (&Method::POST, "/init") => facts::init(&agent, request).await,
        (&Method::GET, guest::PATH_METRICS) => metrics::metrics().await,
        (&Method::GET, "/files") => files::download(&agent, request).await,
        (&Method::POST, "/files") => upload::upload(&agent, request).await,
        (&Method::POST, path) => match path.rsplit_once('/') {
            Some(("/process.Process", method)) => process::call(agent, method, request).await,
            Some(("/filesystem.Filesystem", method)) => filesystem::call(agent, method, request).await,
            _ => e2b::no_route(path),
        },
        (_, path) => e2b::no_route(path),
    }
}
