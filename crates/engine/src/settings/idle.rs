//! Sandboxes that nobody uses are paused, where that was asked for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forkd_protocol::error::chain;
use forkd_protocol::guest::{Health, PATH_HEALTH};
use tracing::{debug, info, warn};

use super::lifetime::AGAIN_MS;
use super::now_ms;
use crate::engine::{Engine, Shared};
use crate::guest::Limits;
use crate::sandbox::{Handle, Life};

/// When it is to be looked at whether it is idle, as far as it can be told from here. Only of one that runs.
pub(super) fn due_at(handle: &Handle) -> Option<u64> {
    let secs = handle.settings.look(|s| s.idle_timeout_secs)?;
    let runs = handle.view.borrow().life == Life::Running;
    let busy = handle.settings.ending.load(Ordering::Relaxed);
    let since = handle.settings.activity.idle_since().filter(|_| runs && !busy)?;
    let again = handle.settings.again_at_ms.load(Ordering::Relaxed);
    Some(since.saturating_add(secs.saturating_mul(1000)).max(again))
}

/// Pauses it, unless something runs in it.
pub(super) async fn rest(shared: Arc<Shared>, handle: Handle) {
    if let Err(e) = try_rest(&shared, &handle).await {
        warn!(sandbox = %handle.id, error = chain(&e), "it is idle, but it runs on; tried again later");
        handle.settings.again_at_ms.store(now_ms() + AGAIN_MS, Ordering::Relaxed);
    }
    handle.settings.ending.store(false, Ordering::Relaxed);
    shared.alarm.ring();
}

async fn try_rest(shared: &Arc<Shared>, handle: &Handle) -> Result<(), crate::error::EngineError> {
    let activity = &handle.settings.activity;
    let limits = Limits::small(shared.config.bounds.guest_grace);
    let health: Health = handle.guest.get(PATH_HEALTH, limits).await?;
    if health.processes > 0 {
        debug!(sandbox = %handle.id, processes = health.processes, "not idle: something runs in it");
        activity.touch();
        return Ok(());
    }
    let closed = activity.close().await;
    if activity.idle_since().is_none() {
        return Ok(());
    }
    info!(sandbox = %handle.id, "nobody uses it; it is paused");
    let engine = Engine { shared: Arc::clone(shared) };
    let pausing = engine.pause(&handle.id);
    let mut view = handle.view.clone();
    let left = async {
        // From then on whoever asks something of it waits until it is paused, and continues it.
        let _ = view.wait_for(|view| view.life != Life::Running).await;
        drop(closed);
        std::future::pending().await
    };
    tokio::select! {
        paused = pausing => paused.map(drop),
        never = left => never,
    }
}
