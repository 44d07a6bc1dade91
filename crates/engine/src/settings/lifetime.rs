//! Sandboxes whose time is over are ended, or paused where that was asked for.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forkd_protocol::error::chain;
use forkd_protocol::rest::OnTimeout;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{idle, now_ms};
use crate::engine::{Engine, Shared};
use crate::sandbox::{Handle, Life};

/// Longest sleep: the clock may be set meanwhile.
const LONGEST: Duration = Duration::from_secs(30);
/// One that could not be ended or paused is tried again after this.
pub(super) const AGAIN_MS: u64 = 30_000;

/// Rung when a time was changed or a sandbox began to run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Alarm(Arc<Notify>);

impl Alarm {
    pub(crate) fn ring(&self) {
        self.0.notify_one();
    }
}

/// Goes on until the engine ends.
pub(crate) async fn keep_lifetimes(shared: Weak<Shared>, alarm: Alarm, ended: CancellationToken) {
    loop {
        let Some(here) = shared.upgrade() else { return };
        let wait = attend(&here);
        drop(here);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = alarm.0.notified() => {}
            () = ended.cancelled() => return,
        }
    }
}

/// Does what is due, and says how long nothing else is.
fn attend(shared: &Arc<Shared>) -> Duration {
    let now = now_ms();
    let mut wait = LONGEST;
    for handle in shared.registry.all() {
        // What its time says comes before what its use says.
        let (over, idle) = (due_at(&handle), idle::due_at(&handle));
        let Some(due) = over.into_iter().chain(idle).min() else { continue };
        if due > now {
            wait = wait.min(Duration::from_millis(due - now));
        } else if !handle.settings.ending.swap(true, Ordering::Relaxed) {
            if over.is_some_and(|over| over <= now) {
                tokio::spawn(end(Arc::clone(shared), handle));
            } else {
                tokio::spawn(idle::rest(Arc::clone(shared), handle));
            }
        }
    }
    wait
}

/// When something is to be done about it; only about one that runs.
fn due_at(handle: &Handle) -> Option<u64> {
    let ends = handle.settings.look(|s| s.ends_at_ms)?;
    let runs = handle.view.borrow().life == Life::Running;
    let busy = handle.settings.ending.load(Ordering::Relaxed);
    (runs && !busy).then(|| ends.max(handle.settings.again_at_ms.load(Ordering::Relaxed)))
}

async fn end(shared: Arc<Shared>, handle: Handle) {
    let on_timeout = handle.settings.look(|s| s.on_timeout);
    info!(sandbox = %handle.id, ?on_timeout, "its time is over");
    let alarm = shared.alarm.clone();
    let engine = Engine { shared };
    let done = match on_timeout {
        OnTimeout::Kill => engine.kill(&handle.id).await,
        OnTimeout::Pause => engine.pause(&handle.id).await.map(drop),
    };
    if let Err(e) = done {
        warn!(sandbox = %handle.id, error = %chain(&e), "its time is over, but it runs on; tried again later");
        handle.settings.again_at_ms.store(now_ms() + AGAIN_MS, Ordering::Relaxed);
    }
    handle.settings.ending.store(false, Ordering::Relaxed);
    alarm.ring();
}
