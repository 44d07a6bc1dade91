//! One connection into a guest: the monitor's `CONNECT port` handshake, then HTTP.

use std::path::Path;

use forkd_protocol::guest::AGENT_PORT;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use super::{Body, GuestError};

/// Longest line that answers `CONNECT` (`OK <port>` and a line feed).
const MAX_GREETING: usize = 32;
/// Most bytes of a response's head.
const MAX_HEAD: usize = 64 * 1024;
/// Most header fields of a response.
const MAX_HEADERS: usize = 64;

/// An open connection, driven by a task that ends with it.
#[derive(Debug)]
pub(super) struct Connection {
    sender: SendRequest<Body>,
    driver: Option<JoinHandle<()>>,
}

impl Connection {
    /// Connects and waits until the guest accepts.
    pub(super) async fn open(socket: &Path) -> Result<Self, GuestError> {
        let mut stream = UnixStream::connect(socket).await.map_err(GuestError::Connect)?;
        stream.write_all(format!("CONNECT {AGENT_PORT}\n").as_bytes()).await.map_err(GuestError::Connect)?;
        read_greeting(&mut stream).await?;
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(MAX_HEAD)
            .max_headers(MAX_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(GuestError::Http)?;
        // How it ended is told to whoever waits for an answer.
        let driver = tokio::spawn(async move { drop(connection.with_upgrades().await) });
        Ok(Self { sender, driver: Some(driver) })
    }

    /// Sends and waits for the head of the answer. A request that did not leave comes back.
    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, (GuestError, Option<Request<Body>>)> {
        match self.sender.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut e) => {
                let unsent = e.take_message();
                Err((GuestError::Http(e.into_error()), unsent))
            }
        }
    }

    /// Whether another request may go over it.
    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Leaves it to the body that is being read from it.
    pub(super) fn let_go(mut self) {
        self.driver = None;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // A call that was given up leaves nothing behind that an agent could keep busy.
        if let Some(driver) = self.driver.take() {
            driver.abort();
        }
    }
}

/// `OK <number>` and a line feed, and nothing after it: the guest speaks only when asked.
async fn read_greeting(stream: &mut UnixStream) -> Result<(), GuestError> {
    let mut line = [0u8; MAX_GREETING];
    let mut got = 0;
    while got < line.len() {
        match stream.read(&mut line[got..]).await.map_err(GuestError::Connect)? {
            0 => return Err(GuestError::NotAccepted),
            n => got += n,
        }
        if let Some(end) = line[..got].iter().position(|&b| b == b'\n') {
            let fine = line.starts_with(b"OK ") && end + 1 == got;
            return if fine { Ok(()) } else { Err(GuestError::Greeting) };
        }
    }
    Err(GuestError::Greeting)
}
