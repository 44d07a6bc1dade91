//! One child, from nothing until it knows who it is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_protocol::error::chain;
use forkd_protocol::guest::network::GuestNetwork;
use forkd_protocol::guest::{GuestSecret, Identified, Identity, PATH_IDENTITY};
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{self, ForkTiming, NetworkPolicy};
use forkd_store::OpenSnapshot;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::ChildError;
use crate::fault;
use crate::guest::{Guest, GuestError, Limits, SMALL_ANSWER};
use crate::identity::{EntropyError, new_identity};
use crate::monitor::{Launcher, Monitor, MonitorError, RunDir};
use crate::network::Networks;
use crate::sandbox::Born;

/// First pause before a guest that accepts no connection is tried again; it doubles up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(2);
const RETRY_MAX: Duration = Duration::from_millis(100);
/// How long a monitor whose child failed may take to say how it is.
const STATUS_BOUND: Duration = Duration::from_secs(2);

/// What all children of one request share.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) launcher: Arc<Launcher>,
    pub(super) networks: Arc<Networks>,
    pub(super) snapshot: Arc<OpenSnapshot>,
    pub(super) permits: Arc<Semaphore>,
    /// How long each may take to answer.
    pub(super) answer: Duration,
    pub(super) started: Instant,
    pub(super) env: BTreeMap<String, String>,
    pub(super) secrets: Vec<GuestSecret>,
    pub(super) limits: rest::Limits,
    /// What may leave each; none where their guests have no network device.
    pub(super) network: Option<NetworkPolicy>,
}

/// From nothing to a child that knows who it is. Where it fails, nothing of it is left.
pub(super) async fn bear(
    request: Arc<Request>,
    id: SandboxId,
    guest: Arc<Guest>,
    give_up: CancellationToken,
) -> Result<Born, ChildError> {
    let launcher = Arc::clone(&request.launcher);
    let born = be_born(request, id, guest, give_up).await;
    // Now, not when it was taken: starting another must not hold this one up.
    launcher.refill();
    born
}

async fn be_born(
    request: Arc<Request>,
    id: SandboxId,
    guest: Arc<Guest>,
    give_up: CancellationToken,
) -> Result<Born, ChildError> {
    let permit = tokio::select! {
        biased;
        () = give_up.cancelled() => return Err(ChildError::GivenUp),
        permit = request.permits.acquire() => permit.map_err(|_| ChildError::GivenUp)?,
    };
    let launcher = Arc::clone(&request.launcher);
    let (launching, child) = (Arc::clone(&request), id.clone());
    let launched = tokio::task::spawn_blocking(move || launch(&launching, &child)).await;
    let (monitor, mut timing) = launched.map_err(|_| ChildError::Broken)??;
    let watch = match monitor.watch() {
        Ok(watch) => watch,
        Err(e) => return fail(id, monitor, e.into()).await,
    };
    let answered = tokio::select! {
        () = give_up.cancelled() => Err(ChildError::GivenUp),
        () = watch.ended() => Err(ChildError::Monitor(MonitorError::Ended(String::new()))),
        identified = identify(&request, &id, &guest) => identified,
    };
    let answered = match answered {
        Ok(told) => open_network(&launcher, &monitor).await.map(|()| told),
        failed => failed,
    };
    drop(permit);
    fault::at!("engine::fork::answered");
    match answered {
        Ok(told) => {
            timing.answered_us = micros(request.started);
            learn_hot(&request, &id, monitor.dir().clone());
            debug!(sandbox = %id, steps = ?told.steps, ?timing, "answered");
            Ok(Born { monitor, watch, timing })
        }
        Err(e) => fail(id, monitor, e).await,
    }
}

/// Has the first child that answers tell which pages all of them change, beside the path: nobody waits for it. At
/// this moment nothing that its user wants has run.
fn learn_hot(request: &Arc<Request>, id: &SandboxId, dir: RunDir) {
    if !request.snapshot.claim_hot() {
        return;
    }
    let (request, id) = (Arc::clone(request), id.clone());
    tokio::task::spawn_blocking(move || {
        if let Err(e) = request.launcher.learn_hot(&dir, &request.snapshot) {
            request.snapshot.disclaim_hot();
            debug!(sandbox = %id, error = %chain(&e), "it did not tell which pages it has changed");
        }
    });
}

async fn fail(id: SandboxId, monitor: Monitor, e: ChildError) -> Result<Born, ChildError> {
    Err(discard(id, monitor, e).await)
}

/// Removes a child and tells how its monitor ended, where that is why.
pub(crate) async fn discard(id: SandboxId, monitor: Monitor, e: ChildError) -> ChildError {
    let removing = tokio::task::spawn_blocking(move || {
        let e = match e {
            ChildError::Monitor(MonitorError::Ended(_)) => MonitorError::Ended(monitor.post_mortem()).into(),
            other => other,
        };
        if !matches!(e, ChildError::GivenUp) {
            let status = monitor.status(STATUS_BOUND).ok();
            warn!(sandbox = %id, error = %e, ?status, console = monitor.dir().console_end(), "a child failed");
        }
        monitor.discard();
        e
    });
    removing.await.unwrap_or(ChildError::Broken)
}

/// Has a guest that knows who it is send and be sent frames.
pub(crate) async fn open_network(launcher: &Arc<Launcher>, monitor: &Monitor) -> Result<(), ChildError> {
    if monitor.netns().is_none() {
        return Ok(());
    }
    let (launcher, dir) = (Arc::clone(launcher), monitor.dir().clone());
    let opened = tokio::task::spawn_blocking(move || launcher.open_network(&dir)).await;
    Ok(opened.map_err(|_| ChildError::Broken)??)
}

/// The part that blocks: a network, a process, and the machine in it.
fn launch(request: &Request, id: &SandboxId) -> Result<(Monitor, ForkTiming), ChildError> {
    let network = request.networks.lease(request.network.as_ref())?;
    let mut monitor = request.launcher.start(id, &request.limits)?;
    monitor.set_network(network);
    fault::at!("engine::fork::monitor_started");
    let started_us = micros(request.started);
    match request.launcher.restore(&mut monitor, &request.snapshot) {
        Ok(()) => {
            fault::at!("engine::fork::restored");
            Ok((monitor, ForkTiming { started_us, restored_us: micros(request.started), answered_us: 0 }))
        }
        Err(e) => {
            monitor.discard();
            Err(e.into())
        }
    }
}

async fn identify(request: &Request, id: &SandboxId, guest: &Guest) -> Result<Identified, ChildError> {
    let (secrets, network) = (&request.secrets, request.network.as_ref().map(|_| GuestNetwork::default()));
    let question =
        || Ok(Identity { secrets: secrets.clone(), ..new_identity(id, &request.env, network.clone())? });
    tell(guest, PATH_IDENTITY, request.answer, ChildError::Identity, question).await
}

/// Tells a restored guest something; until it listens, tries again. Whatever is told may be told twice.
pub(crate) async fn tell<Q: Serialize + Sync>(
    guest: &Guest,
    path: &'static str,
    bound: Duration,
    failed: fn(GuestError) -> ChildError,
    question: impl Fn() -> Result<Q, EntropyError>,
) -> Result<Identified, ChildError> {
    let mut hindrance = None;
    let telling = async {
        loop {
            reach(guest, &mut hindrance).await;
            let question = question().map_err(ChildError::Entropy)?;
            // Bounded below, all of it together.
            match guest.post(path, &question, Limits { time: None, bytes: SMALL_ANSWER }).await {
                // Told again: an agent that has done it already does no harm.
                Err(e) if e.is_broken_connection() => hindrance = Some(e),
                told => return told.map_err(failed),
            }
            tokio::time::sleep(RETRY_MAX).await;
        }
    };
    match tokio::time::timeout(bound, telling).await {
        Ok(told) => told,
        Err(_) => Err(failed(GuestError::Late { what: path, after: bound, source: hindrance.map(Box::new) })),
    }
}

/// Waits until the agent accepts a connection, which is then there for the next call.
pub(crate) async fn reach(guest: &Guest, hindrance: &mut Option<GuestError>) {
    let mut pause = RETRY_FIRST;
    while let Err(e) = guest.reach().await {
        *hindrance = Some(e);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}
