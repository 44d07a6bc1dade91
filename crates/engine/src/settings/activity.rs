//! Whether anything is going on in a sandbox: what is asked of it from outside, and what runs in it.
//!
//! A call counts from when it arrives until its answer has been read to the end, a connection as long as it is open. What
//! was started in the sandbox and goes on without a caller is counted by its agent, which is asked when it matters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forkd_protocol::names::SandboxId;
use tokio::sync::{RwLock, RwLockWriteGuard};

use super::{Keeper, now_ms};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::sandbox::{Handle, Life};

/// What is asked of one sandbox.
#[derive(Debug)]
pub(crate) struct Activity {
    /// Calls and connections.
    open: AtomicUsize,
    /// When there was one last, or something else showed that it is in use; milliseconds since the Unix epoch.
    last_ms: AtomicU64,
    /// Passed by every call before it counts; closed while it is decided that there is none.
    gate: RwLock<()>,
}

impl Activity {
    /// Of a sandbox that is new here.
    pub(super) fn new() -> Self {
        Self { open: AtomicUsize::new(0), last_ms: AtomicU64::new(now_ms()), gate: RwLock::default() }
    }

    /// It is in use now.
    pub(crate) fn touch(&self) {
        self.last_ms.store(now_ms(), Ordering::Relaxed);
    }

    /// Since when nothing is asked of it; none where something is.
    pub(super) fn idle_since(&self) -> Option<u64> {
        (self.open.load(Ordering::Relaxed) == 0).then(|| self.last_ms.load(Ordering::Relaxed))
    }

    /// Nothing begins as long as this is held.
    pub(super) async fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }
}

/// Something that is asked of a sandbox, until it is dropped.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Keeper>);

impl Busy {
    pub(crate) async fn begin(settings: &Arc<Keeper>) -> Self {
        let _passing = settings.activity.gate.read().await;
        settings.activity.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(settings))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.activity.touch();
        self.0.activity.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// A sandbox that runs, for something that is asked of it: one that is paused is continued where that was wished.
    pub(crate) async fn reached(&self, id: &SandboxId) -> Result<(Handle, Busy), EngineError> {
        let handle = self.find(id)?;
        let busy = Busy::begin(&handle.settings).await;
        if handle.view.borrow().life != Life::Running {
            self.wake_for_traffic(id).await?;
        }
        handle.check_running()?;
        Ok((handle, busy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[tokio::test]
    async fn it_is_idle_once_nothing_is_asked_and_nothing_begins_while_that_is_decided() {
        let keeper = Arc::new(Keeper::new(Settings::default()));
        let (first, second) = (Busy::begin(&keeper).await, Busy::begin(&keeper).await);
        keeper.activity.last_ms.store(0, Ordering::Relaxed);
        drop(first);
        assert_eq!(keeper.activity.idle_since(), None);
        drop(second);
        assert!(keeper.activity.idle_since().is_some_and(|since| since > 0));
        let closed = keeper.activity.close().await;
        let waiting = tokio::spawn({
            let keeper = Arc::clone(&keeper);
            async move { Busy::begin(&keeper).await }
        });
        tokio::task::yield_now().await;
        assert!(keeper.activity.idle_since().is_some());
        drop(closed);
        let busy = waiting.await.unwrap();
        assert_eq!(keeper.activity.idle_since(), None);
        drop(busy);
    }
}
