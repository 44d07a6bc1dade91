//! The addresses of sandboxes: opened when they are first told, closed when their sandbox ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use http::StatusCode;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tracing::{debug, warn};

use super::action::{Action, Outcome};
use super::answer::answer;
use super::ports::GuestPorts;
use crate::access::{Caller, Peer};
use crate::audit::Ticket;
use crate::error::ApiError;
use crate::service::{Service, WeakService};

/// Connections to one sandbox at once; more wait until one has ended.
const MOST_CONNECTIONS: usize = 64;
/// After an accept that failed: descriptors may be short.
const AGAIN: Duration = Duration::from_millis(100);

/// Which sandboxes have an address now.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    ports: GuestPorts,
    open: Mutex<HashMap<SandboxId, SocketAddr>>,
}

impl Lines {
    pub(crate) fn new(ports: GuestPorts) -> Self {
        Self { ports, open: Mutex::default() }
    }
}

impl Service {
    /// With the address at which published clients reach it, which is there from now on; empty where there is none.
    pub(crate) fn with_address(&self, mut info: SandboxInfo) -> SandboxInfo {
        info.guest_addr = self.address_of(&info.id).map_or_else(String::new, |at| at.to_string());
        info
    }

    fn address_of(&self, id: &str) -> Option<SocketAddr> {
        if self.keyring().demands() {
            return None;
        }
        let id: SandboxId = id.parse().ok()?;
        let over = self.engine().over(&id).ok()?;
        let mut open = self.lines().open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = open.get(&id) {
            return Some(*at);
        }
        let taken =
            self.lines().ports.take().and_then(|listener| {
                listener.map(|listener| Ok((listener.local_addr()?, listener))).transpose()
            });
        let (at, listener) = taken
            .inspect_err(|e| warn!(sandbox = %id, error = %e, "published clients cannot reach it"))
            .ok()??;
        open.insert(id.clone(), at);
        tokio::spawn(listen(self.downgrade(), id, listener, over));
        Some(at)
    }
}

/// Accepts connections until the sandbox ends.
async fn listen(service: WeakService, id: SandboxId, listener: TcpListener, over: impl Future<Output = ()>) {
    tokio::select! {
        () = accept(&service, &id, &listener) => {}
        () = over => {}
    }
    if let Some(service) = service.upgrade() {
        service.lines().open.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }
}

async fn accept(service: &WeakService, id: &SandboxId, listener: &TcpListener) {
    let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else { return };
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(e) => {
                debug!(sandbox = %id, error = %e, "no connection could be accepted");
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        let Some(service) = service.upgrade() else { return };
        let id = id.clone();
        tokio::spawn(async move {
            attend(service, &id, stream, from).await;
            drop(permit);
        });
    }
}

async fn attend(service: Service, id: &SandboxId, stream: TcpStream, from: SocketAddr) {
    // An option that costs nothing where it is not to be had.
    let _ = stream.set_nodelay(true);
    answer(stream, async |action| {
        let began = Instant::now();
        let what = format!("POST {}", action.route());
        let path = action.path(id);
        let peer = Peer::Loopback(from).name();
        let mut ticket = Ticket::new(service.audit().clone(), what, &path, peer, began);
        let done = act(&service, id, action, &mut ticket).await;
        ticket.finish(done.as_ref().map_or_else(ApiError::status, |_| StatusCode::OK)).await;
        done.map_err(|e| e.text().to_owned())
    })
    .await;
}

async fn act(
    service: &Service,
    id: &SandboxId,
    action: Action,
    ticket: &mut Ticket,
) -> Result<Outcome, ApiError> {
    if service.keyring().demands() {
        return Err(ApiError::unauthorized(
            "a token is needed, which this protocol knows none of: use the API",
        ));
    }
    ticket.by(&Caller::trusted("open"));
    let engine = service.engine();
    Ok(match action {
        Action::Ping => Outcome::Pong(engine.ping(id).await?),
        Action::Exec(request) => Outcome::Executed(engine.exec(id, request).await?),
        Action::Eval(request) => Outcome::Evaluated(engine.eval(id, request).await?),
    })
}
