//! Ports of a sandbox: HTTP and WebSockets under a path, and plain connections.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use forkd_engine::Engine;
use forkd_protocol::guest::TUNNEL_PROTOCOL;
use forkd_protocol::names::SandboxId;
use http::header::{self, HOST, HeaderValue};
use http::{HeaderMap, StatusCode, Uri};
use hyper_util::rt::TokioIo;

use super::agent::{distrust, exchange_authorization};
use crate::error::ApiError;
use crate::extract::Name;
use crate::proxy::{ProxyError, forward, upgrade_of};

/// A server in the sandbox
#[utoipa::path(
    method(get, post, put, patch, delete), path = "/v1/sandboxes/{id}/ports/{port}", operation_id = "pass_to_port",
    tag = "sandboxes", params(("id" = String, Path), ("port" = u16, Path, minimum = 1, maximum = 65535)),
    responses((status = "default", description = "as the server answers; errors of forkd as everywhere"))
)]
pub(crate) async fn root(
    engine: State<Engine>,
    id: Name<SandboxId>,
    request: Request,
) -> Result<Response, ApiError> {
    pass(engine, id, request).await
}

/// What a server in the sandbox serves under a path
///
/// HTTP and WebSockets, streamed both ways, whatever the method and the body.
#[utoipa::path(
    method(get, post, put, patch, delete), path = "/v1/sandboxes/{id}/ports/{port}/{path}",
    operation_id = "pass_to_port_path", tag = "sandboxes",
    params(
        ("id" = String, Path), ("port" = u16, Path, minimum = 1, maximum = 65535),
        ("path" = String, Path, description = "what follows goes on as it is written")
    ),
    responses((status = "default", description = "as the server answers; errors of forkd as everywhere"))
)]
pub(crate) async fn pass(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let (port, path) = port_and_path(request.uri())?;
    exchange_authorization(request.headers_mut());
    tell_origin(request.headers_mut(), &id, port);
    let tunnel = engine.open_port(&id, port).await?;
    let mut answer = forward(tunnel, request, &path).await?;
    distrust(answer.headers_mut());
    keep_cookies_below(answer.headers_mut(), &prefix(&id, port));
    Ok(answer)
}

/// Where a port's server is found on the API's address.
fn prefix(id: &SandboxId, port: u16) -> String {
    format!("/v1/sandboxes/{id}/ports/{port}")
}

/// Cookies of a server are sent to nobody but that server: all of them share the API's name.
fn keep_cookies_below(headers: &mut HeaderMap, prefix: &str) {
    let kept: Vec<HeaderValue> = headers
        .get_all(header::SET_COOKIE)
        .iter()
        .filter_map(|value| below(value.to_str().ok()?, prefix))
        .collect();
    headers.remove(header::SET_COOKIE);
    for cookie in kept {
        headers.append(header::SET_COOKIE, cookie);
    }
}

fn below(cookie: &str, prefix: &str) -> Option<HeaderValue> {
    let mut path = "/";
    let mut parts = vec![];
    for part in cookie.split(';') {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        match name.trim() {
            name if name.eq_ignore_ascii_case("path") => path = value.trim(),
            name if name.eq_ignore_ascii_case("domain") => {}
            _ => parts.push(part),
        }
    }
    let path = if path.starts_with('/') { path } else { "/" };
    format!("{}; Path={prefix}{path}", parts.join(";")).parse().ok()
}

/// A connection to a port of the sandbox
///
/// With `Connection: upgrade` and `Upgrade: forkd-tunnel` the connection becomes one to the port, or to an echo.
#[utoipa::path(
    method(get, post), path = "/v1/sandboxes/{id}/tunnel/{port}", operation_id = "tunnel", tag = "sandboxes",
    params(("id" = String, Path), ("port" = String, Path, description = "1 to 65535, or `echo`")),
    responses((status = "default", description = "101 where it is connected; errors of forkd as everywhere"))
)]
pub(crate) async fn tunnel(
    State(engine): State<Engine>,
    Name(id): Name<SandboxId>,
    mut request: Request,
) -> Result<Response, ApiError> {
    if upgrade_of(request.headers()).is_none_or(|to| to != TUNNEL_PROTOCOL) {
        let text = format!("ask with Connection: upgrade and Upgrade: {TUNNEL_PROTOCOL}");
        return Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", text));
    }
    let to = request.uri().path().rsplit('/').next().unwrap_or_default();
    let mut guest = match to {
        "echo" => engine.open_echo(&id).await?,
        "source" => engine.open_source(&id).await?,
        port => engine.open_port(&id, port_of(port)?).await?,
    };
    let client = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(client) = client.await else { return };
        // Its end is seen by both sides.
        let _ =
            tokio::io::copy_bidirectional_with_sizes(&mut TokioIo::new(client), &mut guest, 1 << 16, 1 << 16)
                .await;
    });
    let headers = [(header::CONNECTION, "upgrade"), (header::UPGRADE, TUNNEL_PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

fn port_of(text: &str) -> Result<u16, ApiError> {
    let port = text.parse().ok().filter(|port| *port != 0);
    port.ok_or_else(|| ApiError::bad_request("a port is a number from 1 to 65535"))
}

/// Of `/v1/sandboxes/{id}/ports/{port}/…`: the port, and what follows, as it was written.
fn port_and_path(uri: &Uri) -> Result<(u16, String), ApiError> {
    let mut parts = uri.path().splitn(7, '/').skip(5);
    let port = port_of(parts.next().unwrap_or_default())?;
    let query = uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    Ok((port, format!("/{}{query}", parts.next().unwrap_or_default())))
}

/// The server is told how it was reached, and is called by a name that it takes for its own.
fn tell_origin(headers: &mut HeaderMap, id: &SandboxId, port: u16) {
    if let Some(host) = headers.get(HOST).cloned() {
        headers.insert("x-forwarded-host", host);
    }
    let value = |text: String| HeaderValue::from_str(&text).ok();
    let told = [
        (header::HeaderName::from_static("x-forwarded-prefix"), value(prefix(id, port))),
        (HOST, value(format!("localhost:{port}"))),
    ];
    for (name, value) in told {
        if let Some(value) = value {
            headers.insert(name, value);
        }
    }
}

impl From<ProxyError> for ApiError {
    fn from(e: ProxyError) -> Self {
        let text = forkd_protocol::error::chain(&e);
        match e {
            ProxyError::Path => Self::bad_request(text),
            ProxyError::Http(_) | ProxyError::Unasked => {
                Self::new(StatusCode::BAD_GATEWAY, "bad_answer", text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_stays_with_the_server_that_set_it() {
        let mut headers = HeaderMap::new();
        for cookie in ["a=1; HttpOnly", "b=2; path=/x; Domain=localhost; Secure", "c=3;Path=relative"] {
            headers.append(header::SET_COOKIE, cookie.parse().unwrap());
        }
        keep_cookies_below(&mut headers, "/p");
        let kept: Vec<_> = headers.get_all(header::SET_COOKIE).iter().map(|v| v.to_str().unwrap()).collect();
        assert_eq!(kept, ["a=1; HttpOnly; Path=/p/", "b=2; Secure; Path=/p/x", "c=3; Path=/p/"]);
    }

    #[test]
    fn what_follows_the_port_goes_on_as_written() {
        let of =
            |text: &str| port_and_path(&text.parse().unwrap()).map(|(port, path)| format!("{port} {path}"));
        assert_eq!(of("/v1/sandboxes/sb-1/ports/80").unwrap(), "80 /");
        assert_eq!(of("/v1/sandboxes/sb-1/ports/80/").unwrap(), "80 /");
        assert_eq!(of("/v1/sandboxes/sb-1/ports/8000/a%2Fb/c?d=e%20f").unwrap(), "8000 /a%2Fb/c?d=e%20f");
        for bad in ["0", "65536", "x", ""] {
            assert!(of(&format!("/v1/sandboxes/sb-1/ports/{bad}/x")).is_err(), "{bad:?}");
        }
    }
}
