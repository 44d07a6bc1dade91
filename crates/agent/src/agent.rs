//! All parts of a running agent, as the routes see them.

use std::time::Duration;

use forkd_protocol::guest::{Frozen, GuestSecret, Identified, Identity};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::contexts::Contexts;
use crate::e2b::watch::Watchers;
use crate::interpreter::Interpreter;
use crate::process::{Sessions, Spawner};
use crate::secrets::{Owner, Secrets};
use crate::users;

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
    /// None where the machine is not the agent's.
    pub(crate) secrets: Option<Secrets>,
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
    /// It stands still already.
    #[error("the sandbox is frozen for a snapshot")]
    Frozen,
    /// They cannot be written, or cannot be overwritten.
    #[error("the secrets of the workload")]
    Secrets(#[source] std::io::Error),
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
        if let Err(error) = self.secrets.as_ref().map_or(Ok(()), Secrets::wipe) {
            self.let_run()?;
            return Err(FreezeError::Secrets(error));
        }
        Ok(Frozen { micros: u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX) })
    }

    /// Continues a source that merely runs on, with these secrets. A child is thawed by its identity. Without its
    /// secrets, where they could not be given, it runs all the same.
    pub(crate) async fn thaw(&self, secrets: &[GuestSecret]) -> Result<(), FreezeError> {
        let _turn = self.identity.lock().await;
        if !self.spawner.is_frozen() {
            // Somebody else let it run, such as the monitor, who knows no secrets.
            return self.complete_secrets(secrets).map_err(FreezeError::Secrets);
        }
        let given = self.replace_secrets(secrets);
        self.let_run()?;
        given.map_err(FreezeError::Secrets)
    }

    /// The workload has these secrets and no others. For whoever holds the turn.
    pub(crate) fn replace_secrets(&self, secrets: &[GuestSecret]) -> std::io::Result<()> {
        self.secrets.as_ref().map_or(Ok(()), |folder| folder.replace(secrets, self.owner()))
    }

    fn complete_secrets(&self, secrets: &[GuestSecret]) -> std::io::Result<()> {
        self.secrets.as_ref().map_or(Ok(()), |folder| folder.complete(secrets, self.owner()))
    }

    /// Adds to the secrets of a workload that runs.
    pub(crate) async fn give_secrets(&self, secrets: &[GuestSecret]) -> Result<(), FreezeError> {
        let _turn = self.identity.lock().await;
        if self.spawner.is_frozen() {
            return Err(FreezeError::Frozen);
        }
        let folder = self.secrets.as_ref().ok_or(FreezeError::Unsupported)?;
        folder.give(secrets, self.owner()).map_err(FreezeError::Secrets)
    }

    /// Who the processes of the workload are where nobody says otherwise.
    fn owner(&self) -> Owner {
        let user = users::find(self.spawner.image().user.as_deref().unwrap_or("root"));
        user.map_or(Owner { uid: 0, gid: 0 }, |user| Owner { uid: user.uid, gid: user.gid })
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
