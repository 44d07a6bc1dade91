//! Takes connections and serves them, all on one thread.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_vsock::VsockListener;

use super::body::Response;
use super::route::route;
use crate::agent::Agent;
use crate::tunnel::{self, Tunnel};

/// Connections at once; a further one waits in the kernel's queue.
const CONNECTIONS: usize = 1024;
/// After a failure to accept, such as for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// How long a client that was refused before its whole body arrived may go on sending.
const LINGER: Duration = Duration::from_secs(5);

/// Where connections come from.
#[derive(Debug)]
pub(crate) enum Listener {
    /// From the host, in a guest.
    Vsock(VsockListener),
    /// For tests on a development machine.
    Tcp(TcpListener),
}

/// Serves until the process ends.
pub(crate) async fn serve(agent: Rc<Agent>, listener: Listener) -> Infallible {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let place = Arc::clone(&places).acquire_owned().await.ok();
        let accepted: io::Result<()> = match &listener {
            Listener::Vsock(vsock) => vsock.accept().await.map(|(stream, _)| start(&agent, stream, place)),
            Listener::Tcp(tcp) => tcp.accept().await.map(|(stream, _)| start(&agent, stream, place)),
        };
        if let Err(e) = accepted {
            crate::log::warn(format_args!("accept: {e}"));
            tokio::time::sleep(ACCEPT_AGAIN).await;
        }
    }
}

fn start<S: AsyncRead + AsyncWrite + Unpin + 'static, P: 'static>(agent: &Rc<Agent>, stream: S, place: P) {
    let agent = Rc::clone(agent);
    tokio::task::spawn_local(async move {
        let becomes = Rc::new(Cell::new(None));
        let told = Rc::clone(&becomes);
        let service = service_fn(move |request| {
            let (agent, becomes) = (Rc::clone(&agent), Rc::clone(&told));
            async move { Ok::<_, Infallible>(answer(agent, request, &becomes).await) }
        });
        let serving = http1::Builder::new()
            .timer(TokioTimer::new())
            .serve_connection(TokioIo::new(stream), service)
            .without_shutdown();
        // A connection ends when its client wants; errors of one concern nobody else.
        if let Ok(parts) = serving.await {
            let stream = parts.io.into_inner();
            match becomes.take() {
                Some(tunnel) => Tunnel::carry(tunnel, stream, &parts.read_buf).await,
                // Whether the client is slow or gone, the place is free at the end.
                None => drop(tokio::time::timeout(LINGER, linger(stream)).await),
            }
        }
        drop(place);
    });
}

/// Answers a request; one that wants a tunnel says what its connection becomes.
async fn answer(agent: Rc<Agent>, request: Request<Incoming>, becomes: &Cell<Option<Tunnel>>) -> Response {
    let Some(target) = tunnel::wanted(&request) else { return route(agent, request).await };
    match target.reach().await {
        Ok(tunnel) => {
            becomes.set(Some(tunnel));
            tunnel::switching()
        }
        Err(e) => e.into_response(),
    }
}

/// Lets the last answer arrive: a socket that is closed with unread bytes resets the connection, and with it
/// goes what the client had not read yet.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
    Ok(())
}
