//! Connections to ports of a guest.

use std::time::Duration;

use forkd_protocol::guest::{PATH_TUNNEL, TUNNEL_PROTOCOL};
use http::header::{CONNECTION, HOST, HeaderValue, UPGRADE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use super::connection::Connection;
use super::{Body, Guest, GuestError, SMALL_ANSWER};

impl Guest {
    /// Connects to a port (or what else `to` names), over a connection of its own, within `bound`.
    pub(crate) async fn tunnel(&self, to: &str, bound: Duration) -> Result<TokioIo<Upgraded>, GuestError> {
        let late = |_| GuestError::late("a connection to a port", bound);
        timeout(bound, self.open_tunnel(to)).await.map_err(late)?
    }

    async fn open_tunnel(&self, to: &str) -> Result<TokioIo<Upgraded>, GuestError> {
        let body: Body = Empty::new().map_err(|never| match never {}).boxed();
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{PATH_TUNNEL}{to}"))
            .header(HOST, "agent")
            .header(CONNECTION, HeaderValue::from_static("upgrade"))
            .header(UPGRADE, TUNNEL_PROTOCOL)
            .body(body)
            .map_err(GuestError::BadRequest)?;
        let mut connection = Connection::open(&self.socket).await?;
        let response = connection.send(request).await.map_err(|(e, _)| e)?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = Limited::new(response.into_body(), SMALL_ANSWER).collect().await;
            return Err(GuestError::refused(status, &body.map_err(GuestError::BrokeOff)?.to_bytes()));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(GuestError::Http)?;
        Ok(TokioIo::new(upgraded))
    }
}
