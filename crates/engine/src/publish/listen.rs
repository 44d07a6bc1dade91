//! Listeners, and the connections that they accept.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::Publish;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, info, warn};

use super::PublishError;
use crate::engine::{Engine, Shared};
use crate::sandbox::{Handle, View, removed_or_ended};
use crate::settings::Keeper;

/// Connections of one port at once; more wait until one has ended.
const MOST_CONNECTIONS: usize = 256;
/// After an accept that failed: descriptors may be short.
const AGAIN: Duration = Duration::from_millis(100);
/// Between two attempts to have an address back that another program took.
const BIND_AGAIN: Duration = Duration::from_secs(5);
/// Bytes on their way in each direction.
const BUFFER: usize = 64 * 1024;

/// An address that is ours, where nobody is accepted yet.
#[derive(Debug)]
pub(crate) struct Bound {
    /// With the port that it has, where any was asked for.
    pub(crate) port: Publish,
    listener: TcpListener,
}

/// Takes all addresses, or none.
pub(crate) async fn bind(asked: &[Publish]) -> Result<Vec<Bound>, PublishError> {
    let mut bound = Vec::new();
    for port in asked {
        bound.push(bind_one(*port).await?);
    }
    Ok(bound)
}

async fn bind_one(port: Publish) -> Result<Bound, PublishError> {
    let failed = |e| PublishError::of(port.host, e);
    let listener = TcpListener::bind(port.host).await.map_err(failed)?;
    let host = listener.local_addr().map_err(failed)?;
    Ok(Bound { port: Publish { host, ..port }, listener })
}

/// What a listener has of its sandbox. Not its mailbox, which would keep its task alive.
#[derive(Debug, Clone)]
struct Sandbox {
    shared: Weak<Shared>,
    id: SandboxId,
    view: watch::Receiver<View>,
    settings: Arc<Keeper>,
}

impl Sandbox {
    fn of(shared: &Arc<Shared>, handle: &Handle) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            id: handle.id.clone(),
            view: handle.view.clone(),
            settings: Arc::clone(&handle.settings),
        }
    }

    /// Resolves when it is being removed, has ended, or nobody looks after it any more.
    async fn over(&self) {
        removed_or_ended(self.view.clone()).await;
    }
}

/// Accepts connections until the sandbox ends.
pub(crate) fn serve(shared: &Arc<Shared>, handle: &Handle, bound: Vec<Bound>) {
    for bound in bound {
        // Listed as such when the fork is answered.
        handle.settings.listening.begin(bound.port.host);
        tokio::spawn(accept_until_over(Sandbox::of(shared, handle), bound));
    }
}

/// Listens again for a sandbox that was found again.
pub(crate) fn serve_again(shared: &Arc<Shared>, handle: &Handle) {
    for port in handle.settings.look(|s| s.published.clone()) {
        let sandbox = Sandbox::of(shared, handle);
        tokio::spawn(async move {
            let bound = tokio::select! {
                bound = bind_again(&sandbox.id, port) => bound,
                () = sandbox.over() => return,
            };
            sandbox.settings.listening.begin(bound.port.host);
            accept_until_over(sandbox, bound).await;
        });
    }
}

async fn bind_again(id: &SandboxId, port: Publish) -> Bound {
    let mut said = false;
    loop {
        match bind_one(port).await {
            Ok(bound) => return bound,
            Err(e) if !said => {
                warn!(sandbox = %id, error = %chain(&e), "a published port is not reachable; tried again");
                said = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_AGAIN).await;
    }
}

async fn accept_until_over(sandbox: Sandbox, bound: Bound) {
    let Bound { port, listener } = bound;
    info!(sandbox = %sandbox.id, %port, "published");
    tokio::select! {
        () = accept(&sandbox, &listener, port.guest) => {}
        () = sandbox.over() => {}
    }
    drop(listener);
    sandbox.settings.listening.end(port.host);
}

async fn accept(sandbox: &Sandbox, listener: &TcpListener, port: u16) {
    let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                debug!(sandbox = %sandbox.id, error = %e, "no connection could be accepted");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let sandbox = sandbox.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = carry(&sandbox, port, (stream, from)) => {}
                () = sandbox.over() => {}
            }
            drop(permit);
        });
    }
}

/// Joins a connection with one to the guest; where there is none, it is closed.
async fn carry(sandbox: &Sandbox, port: u16, (mut stream, from): (TcpStream, SocketAddr)) {
    let id = &sandbox.id;
    let connected = async {
        let engine = Engine { shared: sandbox.shared.upgrade()? };
        let opened = engine.open_port(id, port).await;
        opened.map_err(|e| debug!(sandbox = %id, port, %from, error = %chain(&e), "not connected")).ok()
    };
    let Some(mut guest) = connected.await else { return };
    // An option that costs nothing where it is not to be had.
    let _ = stream.set_nodelay(true);
    // Its end is seen by both sides.
    let _ = tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut guest, BUFFER, BUFFER).await;
}
