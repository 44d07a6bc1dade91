//! Streamable HTTP on a loopback address: plain JSON answers, no sessions.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use forkd_controller::ChosenToken;
use http::{StatusCode, header};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;

use super::Server;
use crate::error::CliError;

/// Where clients expect it.
pub(crate) const PATH: &str = "/mcp";
/// Longest request: what is written to a file travels in one.
const MAX_REQUEST: usize = 16 << 20;

/// A place to serve at, and what is demanded of whoever comes: they act with the rights of this command.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    token: ChosenToken,
}

impl Door {
    /// Takes the address.
    ///
    /// # Errors
    /// It is not loopback, or taken.
    pub(crate) async fn open(address: SocketAddr, token: ChosenToken) -> Result<Self, CliError> {
        if !address.ip().is_loopback() {
            let text = format!("{address} can be reached from other computers, and has no TLS");
            return Err(CliError::usage(text).with_hint("listen at 127.0.0.1:PORT, and tunnel to it"));
        }
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|e| CliError::io(format!("listening at {address}"), e))?;
        Ok(Self { listener, token })
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> String {
        self.listener.local_addr().map_or_else(|_| String::new(), |address| format!("http://{address}{PATH}"))
    }
}

/// Serves until `stop`.
pub(crate) async fn serve(
    server: Server,
    door: Door,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), CliError> {
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(MAX_REQUEST)
        // Pages in browsers have no business here.
        .enforce_origin_validation();
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let router =
        Router::new().route_service(PATH, service).layer(from_fn_with_state(Arc::new(door.token), admit));
    let serving = axum::serve(door.listener, router).with_graceful_shutdown(stop);
    serving.await.map_err(|e| CliError::io("serving", e))
}

async fn admit(State(token): State<Arc<ChosenToken>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(|value| value.split_once(' '));
    match given {
        Some((scheme, given)) if scheme.eq_ignore_ascii_case("bearer") && token.is(given.trim()) => {
            next.run(request).await
        }
        _ => (StatusCode::UNAUTHORIZED, "send Authorization: Bearer and the token\n").into_response(),
    }
}
