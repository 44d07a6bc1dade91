//! `/execute` and `/contexts`, as clients of E2B's code interpreter call them.

use std::collections::BTreeMap;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::lines::Lines;
use super::{Context, ContextError, Contexts};
use crate::http::{Body, Response, read_limited};
use crate::interpreter::{EvalError, Language, Watch};

/// Pieces of output between the code and who watches; who does not read them holds the code back.
const IN_FLIGHT: usize = 16;

#[derive(Debug, Deserialize)]
struct Execute {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Create {
    language: Option<String>,
    cwd: Option<String>,
}

/// Why a call is refused; clients read the text.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error("{0}")]
    Request(String),
    #[error("only one of context_id or language can be provided")]
    Both,
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error("there is no {0} {1:.100}")]
    Route(Method, String),
}

impl Refused {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Context(ContextError::Unknown(_)) | Self::Route(..) => StatusCode::NOT_FOUND,
            Self::Context(ContextError::TooMany) | Self::Eval(EvalError::Busy) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Context(_) | Self::Request(_) | Self::Both => StatusCode::BAD_REQUEST,
            Self::Eval(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Body::whole(self.to_string()).respond(status, "text/plain; charset=utf-8")
    }
}

/// `POST /execute`: runs code and tells line by line what it does. Where the client goes away, the code is interrupted.
pub(crate) async fn execute(contexts: &Contexts, request: Request<Incoming>) -> Response {
    begin(contexts, request).await.unwrap_or_else(Refused::into_response)
}

async fn begin(contexts: &Contexts, request: Request<Incoming>) -> Result<Response, Refused> {
    let asked: Execute = read(request).await?;
    let context = choose(contexts, asked.context_id.as_deref(), asked.language.as_deref())?;
    let (events, watched) = mpsc::channel(IN_FLIGHT);
    let watch = Watch { events, env: asked.env_vars.unwrap_or_default() };
    let ended = context.interpreter.run(asked.code, watch)?;
    let lines = Lines::new(context.next_run(), watched, ended);
    Ok(Body::pieces(lines.into_stream()).respond(StatusCode::OK, "application/x-ndjson"))
}

fn choose(contexts: &Contexts, id: Option<&str>, language: Option<&str>) -> Result<Context, Refused> {
    match (id.filter(|id| !id.is_empty()), language.filter(|language| !language.is_empty())) {
        (Some(_), Some(_)) => Err(Refused::Both),
        (Some(id), None) => Ok(contexts.find(id)?),
        (None, named) => {
            let named = named.unwrap_or("python");
            let language = Language::named(named).ok_or_else(|| ContextError::Language(named.to_owned()))?;
            Ok(contexts.default_of(language)?)
        }
    }
}

async fn read<T: for<'de> Deserialize<'de>>(request: Request<Incoming>) -> Result<T, Refused> {
    let body = read_limited(request).await.map_err(|e| Refused::Request(e.to_string()))?;
    let body = if body.is_empty() { &b"{}"[..] } else { &body };
    serde_json::from_slice(body).map_err(|e| Refused::Request(e.to_string()))
}

/// Everything below `/contexts`.
pub(crate) async fn manage(contexts: &Contexts, request: Request<Incoming>) -> Response {
    answer(contexts, request).await.unwrap_or_else(Refused::into_response)
}

async fn answer(contexts: &Contexts, request: Request<Incoming>) -> Result<Response, Refused> {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let parts: Vec<&str> = path.trim_start_matches("/contexts").trim_matches('/').split('/').collect();
    match (&method, &parts[..]) {
        (&Method::GET, [""]) => Ok(Body::json(StatusCode::OK, &contexts.list())),
        (&Method::POST, [""]) => {
            let Create { language, cwd } = read(request).await?;
            let context = contexts.create(language.as_deref(), cwd)?;
            Ok(Body::json(StatusCode::OK, &context.shown()))
        }
        (&Method::GET, [id]) => Ok(Body::json(StatusCode::OK, &contexts.find(id)?.shown())),
        (&Method::DELETE, [id]) => {
            contexts.remove(id).await?;
            Ok(done())
        }
        (&Method::POST, [id, "restart"]) => {
            contexts.find(id)?.interpreter.restart().await;
            Ok(done())
        }
        _ => Err(Refused::Route(method, path)),
    }
}

fn done() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}
