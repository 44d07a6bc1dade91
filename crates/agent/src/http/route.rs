//! Which handler answers a request. Nothing is decided here but that.

use std::rc::Rc;

use forkd_protocol::guest;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::body::{Body, Response};
use super::verbs;
use crate::agent::Agent;
use crate::e2b::{self, files, filesystem, metrics, process};

pub(super) async fn route(agent: Rc<Agent>, request: Request<Incoming>) -> Response {
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, guest::PATH_HEALTH) => verbs::health(&agent).await,
        (&Method::POST, verb) if verb.starts_with("/forkd/") => verbs::answer(agent, verb, request).await,
        (&Method::GET, "/health") => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        (&Method::GET, guest::PATH_METRICS) => metrics::metrics().await,
        (&Method::GET, "/files") => files::download(request).await,
        (&Method::POST, "/files") => files::upload(request).await,
        (&Method::POST, path) => match path.rsplit_once('/') {
            Some(("/process.Process", method)) => process::call(agent, method, request).await,
            Some(("/filesystem.Filesystem", method)) => filesystem::call(method, request).await,
            _ => e2b::no_route(path),
        },
        (_, path) => e2b::no_route(path),
    }
}
