//! Keeping the pool of waiting monitors full, beside the path of forks.
//!
//! One is started at a time, and only while a core has no child on its way: a fork that finds the pool empty starts
//! its own, which is no slower than sharing its core with one that is started for somebody later.

use std::sync::{Arc, Weak};

use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::engine::{Shared, blocking};
use crate::monitor::Launcher;

/// Fills the pool now and whenever something was taken, until `ended`.
pub(crate) async fn keep_filled(shared: Weak<Shared>, ended: CancellationToken) {
    let Some(wanted) = shared.upgrade().map(|shared| shared.launcher.refill_wanted()) else { return };
    loop {
        while let Some((launcher, id)) = next(&shared) {
            match blocking(move || launcher.start_waiting(&id)).await {
                Ok(Ok(())) => {}
                // The next fork starts its own, and tells its user why where that fails as well.
                Ok(Err(e)) => {
                    warn!(error = %chain(&e), "no monitor could be started ahead of time");
                    break;
                }
                Err(_) => return,
            }
        }
        tokio::select! {
            () = ended.cancelled() => return,
            () = wanted.notified() => {}
        }
    }
}

/// What it takes to start one more, where one is wanted and a core has nothing better to do.
fn next(shared: &Weak<Shared>) -> Option<(Arc<Launcher>, SandboxId)> {
    let shared = shared.upgrade()?;
    if !shared.launcher.lacks_waiting() || !shared.has_idle_core() {
        return None;
    }
    Some((Arc::clone(&shared.launcher), shared.ids.waiting().ok()?))
}
