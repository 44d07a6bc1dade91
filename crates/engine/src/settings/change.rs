//! What callers of the engine can learn and change about a sandbox's settings.

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;

use super::{Access, Settings, Shape, check_secs};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::sandbox::{Handle, Life, SandboxError};

/// A sandbox that runs, and whether it had to be continued for that.
#[derive(Debug, Clone)]
pub struct Connected {
    /// The sandbox.
    pub sandbox: SandboxInfo,
    /// It was paused.
    pub resumed: bool,
}

impl Engine {
    /// The tokens of a sandbox.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn access(&self, id: &SandboxId) -> Result<Access, EngineError> {
        Ok(self.find(id)?.settings.look(|s| s.access.clone()))
    }

    /// The tokens of all sandboxes.
    pub fn accesses(&self) -> Vec<(SandboxId, Access)> {
        let all = self.shared.registry.all().into_iter();
        all.map(|handle| (handle.settings.look(|s| s.access.clone()), handle.id))
            .map(|(a, id)| (id, a))
            .collect()
    }

    /// What the machine of a sandbox is like.
    ///
    /// # Errors
    /// There is no such sandbox.
    pub fn shape(&self, id: &SandboxId) -> Result<Shape, EngineError> {
        Ok(self.find(id)?.settings.look(|s| s.shape))
    }

    /// The sandbox lives for this long from now on, or, with `only_longer`, for at least this long.
    ///
    /// # Errors
    /// There is no such sandbox, or the time is longer than a year.
    pub async fn set_timeout(&self, id: &SandboxId, secs: u64, only_longer: bool) -> Result<(), EngineError> {
        check_secs(Some(secs))?;
        let handle = self.find(id)?;
        let change = |s: &mut Settings| if only_longer { s.live_at_least(secs) } else { s.live_for(secs) };
        handle.settings.change(&self.shared.store, id, change).await?;
        self.shared.alarm.ring();
        Ok(())
    }

    /// Has the sandbox run, for at least `secs` from now on: continues it where it is paused, or about to be.
    ///
    /// # Errors
    /// There is no such sandbox, it ended, or it cannot be continued.
    pub async fn connect(&self, id: &SandboxId, secs: Option<u64>) -> Result<Connected, EngineError> {
        check_secs(secs)?;
        loop {
            let handle = self.find(id)?;
            let life = handle.view.borrow().life;
            match life {
                Life::Running => {
                    if let Some(secs) = secs {
                        self.set_timeout(id, secs, true).await?;
                    }
                    return Ok(Connected { sandbox: handle.info(), resumed: false });
                }
                Life::Paused => {
                    if let Some(sandbox) = self.wake(&handle, secs).await? {
                        return Ok(Connected { sandbox, resumed: true });
                    }
                }
                Life::Starting | Life::Pausing | Life::Resuming => handle.settled().await,
                Life::Stopping | Life::Ended => handle.check_running()?,
            }
        }
    }

    /// Has a sandbox run that traffic arrives for: continues it where it is paused and that was asked for.
    ///
    /// # Errors
    /// There is no such sandbox, or it does not run and is not to be continued, or cannot be.
    pub async fn wake_for_traffic(&self, id: &SandboxId) -> Result<(), EngineError> {
        let handle = self.find(id)?;
        let (auto_resume, secs) = handle.settings.look(|s| (s.auto_resume, s.timeout_secs));
        if handle.view.borrow().life != Life::Running && auto_resume {
            self.connect(id, secs).await?;
        }
        Ok(self.find(id)?.check_running()?)
    }

    /// Continues a paused sandbox; none where somebody else was faster.
    async fn wake(&self, handle: &Handle, secs: Option<u64>) -> Result<Option<SandboxInfo>, EngineError> {
        let before = handle.settings.look(|s| (s.ends_at_ms, s.timeout_secs));
        let lives = move |s: &mut Settings| match secs.or(s.timeout_secs) {
            Some(secs) => s.live_for(secs),
            None => s.ends_at_ms = None,
        };
        handle.settings.change(&self.shared.store, &handle.id, lives).await?;
        match self.resume(&handle.id).await {
            Ok(sandbox) => Ok(Some(sandbox)),
            Err(EngineError::Sandbox(SandboxError::NotPaused { .. })) => Ok(None),
            Err(e) => {
                let back = |s: &mut Settings| (s.ends_at_ms, s.timeout_secs) = before;
                handle.settings.change(&self.shared.store, &handle.id, back).await?;
                Err(e)
            }
        }
    }
}
