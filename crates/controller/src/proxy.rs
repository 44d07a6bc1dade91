//! HTTP and WebSockets to a port of a sandbox: one connection per request, streaming both ways.

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use forkd_engine::{Tunnel, drop_hop_headers};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, Version};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

/// Most bytes of a head that a server in a sandbox answers.
const MAX_HEAD: usize = 256 * 1024;

/// Why a server in a sandbox gave no answer to pass on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProxyError {
    /// What follows the prefix is no path.
    #[error("the path for the sandbox is not valid")]
    Path,
    /// It broke off, or speaks no HTTP/1.1.
    #[error("what listens on that port does not answer in HTTP")]
    Http(#[from] hyper::Error),
    /// Nobody asked for another protocol.
    #[error("what listens on that port switched to a protocol that was not asked for")]
    Unasked,
}

/// Passes a request on and its answer back. `path` is path and query as the server in the sandbox sees them.
pub(crate) async fn forward(
    tunnel: Tunnel,
    mut request: Request,
    path: &str,
) -> Result<Response, ProxyError> {
    let wanted = upgrade_of(request.headers());
    let client = wanted.is_some().then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = path.parse::<Uri>().map_err(|_| ProxyError::Path)?;
    *request.version_mut() = Version::HTTP_11;
    drop_hop_headers(request.headers_mut());
    set_upgrade(request.headers_mut(), wanted);
    let builder = http1::Builder::new().max_buf_size(MAX_HEAD).handshake(TokioIo::new(tunnel));
    let (mut sender, connection) = builder.await?;
    // How it ended is told to whoever waits for the answer or reads its body.
    tokio::spawn(async move { drop(connection.with_upgrades().await) });
    let mut response = sender.send_request(request).await?;
    let switched = upgrade_of(response.headers());
    drop_hop_headers(response.headers_mut());
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let client = client.ok_or(ProxyError::Unasked)?;
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(join(client, server));
        set_upgrade(response.headers_mut(), switched);
    }
    Ok(response.map(Body::new))
}

/// What a request or an answer wants its connection to become.
pub(crate) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let named = |v: &HeaderValue| {
        v.to_str().is_ok_and(|v| v.split(',').any(|t| t.trim().eq_ignore_ascii_case("upgrade")))
    };
    headers.get_all(CONNECTION).iter().any(named).then(|| headers.get(UPGRADE).cloned()).flatten()
}

fn set_upgrade(headers: &mut HeaderMap, to: Option<HeaderValue>) {
    if let Some(to) = to {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, to);
    }
}

/// Joins a client's connection with another one, once both are what they were to become.
async fn join(client: OnUpgrade, server: OnUpgrade) {
    let (Ok(client), Ok(server)) = tokio::join!(client, server) else { return };
    // Its end is seen by both sides.
    let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(server)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_protocol_is_wanted_only_where_the_connection_says_so() {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("h2c"));
        assert_eq!(upgrade_of(&headers), None);
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        assert_eq!(upgrade_of(&headers).unwrap(), "websocket");
    }
}
