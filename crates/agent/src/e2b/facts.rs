//! What every process of the sandbox is given: `/envs`, `/init`.

use std::collections::BTreeMap;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde::Deserialize;
use serde_json::json;

use crate::agent::Agent;
use crate::http::{Body, Response, read_limited};

/// As far as it concerns a sandbox of forkd, which is told the rest with its identity.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Init {
    env_vars: Option<BTreeMap<String, String>>,
}

/// `GET /envs`: the variables that every process is given.
pub(crate) fn variables(agent: &Agent) -> Response {
    Body::json(StatusCode::OK, &agent.spawner.env())
}

/// `POST /init`: variables for every later process.
pub(crate) async fn init(agent: &Agent, request: Request<Incoming>) -> Response {
    let refused =
        |message: String| Body::json(StatusCode::BAD_REQUEST, &json!({ "code": 400, "message": message }));
    let body = match read_limited(request).await {
        Ok(body) => body,
        Err(e) => return refused(e.to_string()),
    };
    let init: Init = match serde_json::from_slice(if body.is_empty() { b"{}" } else { &body }) {
        Ok(init) => init,
        Err(e) => return refused(e.to_string()),
    };
    if let Some(added) = init.env_vars {
        let mut env = agent.spawner.env();
        env.extend(added);
        agent.spawner.set_env(env);
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
