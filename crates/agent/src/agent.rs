//! All parts of a running agent, as the routes see them.

use std::time::Duration;

use forkd_protocol::guest::{Frozen, Identified, Identity};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::contexts::Contexts;
use crate::e2b::watch::Watchers;
use crate::interpreter::Interpreter;
use crate::process::{Sessions, Spawner};

/// Longest wait for the workload to stand still, where nobody says otherwise.
pub(crate) const FREEZE_BOUND: Duration = Duration::from_secs(2);

/// The parts.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) spawner: Spawner,
    pub(crate) sessions: Sessions,
    pub(crate) interpreter: Interpreter,
    pub(crate) contexts: Contexts,
    pub(crate) watchers: Watchers,
    /// Whether clock, names and random state of this machine are the agent's to change: it is PID 1.
    pub(crate) owns_machine: bool,
    /// Who the guest is. Held while that changes and while the workload is stopped or continued, one at a time.
    pub(crate) identity: Mutex<Option<Known>>,
}

/// An identity that was taken on in full.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) identity: Identity,
    pub(crate) answer: Identified,
}

/// Why the workload does not stand still.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FreezeError {
    /// It was thawed again.
    #[error("the workload did not stand still within {} ms", .0.as_millis())]
    DidNotFreeze(Duration),
    /// No cgroups: the agent is not PID 1 of a guest.
    #[error("this agent cannot freeze its workload")]
    Unsupported,
    /// The kernel refused.
    #[error("the workload cannot be frozen or thawed")]
    Kernel(#[from] std::io::Error),
}

impl Agent {
    /// Brings the disk up to date and stops the workload. Once stopped, it stays so.
    pub(crate) async fn freeze(&self, bound: Duration) -> Result<Frozen, FreezeError> {
        let _turn = self.identity.lock().await;
        let cgroups = self.spawner.cgroups().ok_or(FreezeError::Unsupported)?.clone();
        if self.spawner.is_frozen() {
            return Ok(Frozen { micros: 0 });
        }
        // So that children have little to write back. What the workload writes from now on until it stands still is in
        // the memory of the snapshot, whose disk is of the same instant: syncing again would only keep it waiting.
        sync_root().await?;
        let started = Instant::now();
        self.spawner.set_frozen(true);
        if let Err(error) = blocking(move || cgroups.freeze(bound)).await {
            self.let_run()?;
            return Err(match error.kind() {
                std::io::ErrorKind::TimedOut => FreezeError::DidNotFreeze(bound),
                _ => error.into(),
            });
        }
        Ok(Frozen { micros: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX) })
    }

    /// Continues a source that merely runs on. A child is thawed by its identity.
    pub(crate) async fn thaw(&self) -> Result<(), FreezeError> {
        let _turn = self.identity.lock().await;
        self.let_run()
    }

    /// For whoever holds the turn.
    pub(crate) fn let_run(&self) -> Result<(), FreezeError> {
        if self.spawner.is_frozen() {
            self.spawner.cgroups().ok_or(FreezeError::Unsupported)?.thaw()?;
            self.spawner.set_frozen(false);
        }
        Ok(())
    }
}

async fn sync_root() -> std::io::Result<()> {
    blocking(|| Ok(rustix::fs::syncfs(std::fs::File::open("/")?)?)).await
}

/// Runs what waits for the kernel on another thread.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}
