//! Pausing: a sandbox is taken to the disk, its monitor ends, and later it is continued as who it was.
//!
//! ```text
//!   pause   freeze workload ─▶ write what changed, machine stands still ─▶ commit: the row says `paused` ─▶ end monitor
//!   resume  start monitor, restore ─▶ tell the guest the time ─▶ commit: the row says `running` ─▶ thaw workload
//! ```
//!
//! The row is the only thing that decides. Whoever finds one that says `running` lets monitor and workload go on;
//! whoever finds one that says `paused` ends what monitor there is. Nothing of the workload runs before a commit, so
//! what it has done once it never does again.

mod error;
mod park;
mod wake;

use std::sync::Arc;

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

pub use error::PauseError;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::sandbox::{Command, Errand, Handle};

impl Engine {
    /// Takes a running sandbox to the disk: its memory is given back to the host. Where that fails it runs on, and
    /// nothing else is left. Dropping the future changes nothing.
    ///
    /// # Errors
    /// It does not run, its guest does not freeze, its agent or monitor is too old, or the disk is full.
    pub async fn pause(&self, id: &SandboxId) -> Result<SandboxInfo, EngineError> {
        let handle = self.shared.registry.get(id)?;
        handle.check_running()?;
        let give_up = CancellationToken::new();
        let work = park::park(Arc::clone(&self.shared), handle.clone(), give_up.clone());
        let asking = send(&handle, Command::Pause, Box::pin(work), give_up);
        self.shared.figures.timed("pause", asking).await
    }

    /// Continues a paused sandbox, as who it was and where it stood. Where that fails it is paused still, and its
    /// workload has not run. Dropping the future changes nothing.
    ///
    /// # Errors
    /// It is not paused, this host cannot restore it or has no room, or its guest does not answer.
    pub async fn resume(&self, id: &SandboxId) -> Result<SandboxInfo, EngineError> {
        let handle = self.shared.registry.get(id)?;
        handle.check_paused()?;
        let give_up = CancellationToken::new();
        let work = wake::wake(Arc::clone(&self.shared), handle.clone(), give_up.clone());
        // It has not been idle since before it was paused.
        handle.settings.activity.touch();
        let asking = send(&handle, Command::Resume, Box::pin(work), give_up);
        let resumed = self.shared.figures.timed("resume", asking).await;
        handle.settings.activity.touch();
        self.shared.alarm.ring();
        resumed
    }
}

/// Has the sandbox's task do it, and shows the sandbox as it is then.
async fn send<T>(
    handle: &Handle,
    command: fn(Errand<T>) -> Command,
    work: BoxFuture<'static, Result<T, EngineError>>,
    give_up: CancellationToken,
) -> Result<SandboxInfo, EngineError> {
    let (answer, answered) = oneshot::channel();
    let sent = handle.commands.send(command(Errand { work, give_up, answer })).is_ok();
    match if sent { answered.await.ok() } else { None } {
        Some(done) => done.map(|()| handle.info()),
        // It was removed, or the engine lets go of it.
        None => Err(handle.over().await.into()),
    }
}
