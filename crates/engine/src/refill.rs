//! Keeping the pools of waiting monitors and networks full, beside the path of forks.
//!
//! One is started at a time, and only while a core has no child on its way: a fork that finds the pool empty starts
//! its own, which is no slower than sharing its core with one that is started for somebody later.

use std::sync::{Arc, Weak};

use forkd_host::net::Network;
use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::engine::{Shared, blocking};
use crate::error::EngineError;
use crate::monitor::Launcher;

/// Fills the pools now and whenever something was taken, until `ended`.
pub(crate) async fn keep_filled(shared: Weak<Shared>, ended: CancellationToken) {
    let Some(wanted) = shared.upgrade().map(|shared| shared.launcher.refill_wanted()) else { return };
    loop {
        if fill_monitors(&shared).await.and(fill_networks(&shared).await).is_err() {
            return;
        }
        tokio::select! {
            () = ended.cancelled() => return,
            () = wanted.notified() => {}
        }
    }
}

/// Where one fails the next fork starts its own, and tells its user why where that fails as well.
async fn fill_monitors(shared: &Weak<Shared>) -> Result<(), EngineError> {
    while let Some((launcher, id)) = next(shared) {
        if let Err(e) = blocking(move || launcher.start_waiting(&id)).await? {
            warn!(error = %chain(&e), "no monitor could be started ahead of time");
            break;
        }
    }
    Ok(())
}

async fn fill_networks(shared: &Weak<Shared>) -> Result<(), EngineError> {
    while let Some(network) = next_network(shared) {
        if let Err(e) = blocking(move || network.fill_one()).await? {
            warn!(error = %chain(&e), "no network could be made ahead of time");
            break;
        }
    }
    Ok(())
}

fn next_network(shared: &Weak<Shared>) -> Option<Network> {
    let shared = shared.upgrade()?;
    if shared.has_idle_core() { shared.networks.to_fill() } else { None }
}

/// What it takes to start one more, where one is wanted and a core has nothing better to do.
fn next(shared: &Weak<Shared>) -> Option<(Arc<Launcher>, SandboxId)> {
    let shared = shared.upgrade()?;
    if !shared.launcher.lacks_waiting() || !shared.has_idle_core() {
        return None;
    }
    Some((Arc::clone(&shared.launcher), shared.ids.waiting().ok()?))
}
