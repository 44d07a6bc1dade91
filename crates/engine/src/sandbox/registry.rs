//! Where everybody but the task itself finds a sandbox.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use tokio::sync::{mpsc, watch};

use super::{Command, Life, SandboxError, Turns};
use crate::guest::Guest;
use crate::monitor::RunDir;

/// How many ids of removed sandboxes are remembered, so that removing one again succeeds.
const REMEMBERED: usize = 4096;

/// What others may know about a sandbox; written by its task alone.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) life: Life,
    pub(crate) info: SandboxInfo,
}

/// How others reach a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) id: SandboxId,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) view: watch::Receiver<View>,
    pub(crate) guest: Arc<Guest>,
    pub(crate) dir: RunDir,
    pub(crate) turns: Arc<Turns>,
}

/// All sandboxes of one engine. The lock is held for a look-up, never while anything is waited for.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    sandboxes: BTreeMap<SandboxId, Handle>,
    removed: VecDeque<SandboxId>,
}

impl Registry {
    pub(crate) fn insert(&self, handle: Handle) {
        self.lock().sandboxes.insert(handle.id.clone(), handle);
    }

    /// Forgets a sandbox that is gone altogether.
    pub(super) fn remove(&self, id: &SandboxId) {
        let mut known = self.lock();
        if known.sandboxes.remove(id).is_some() {
            if known.removed.len() == REMEMBERED {
                known.removed.pop_front();
            }
            known.removed.push_back(id.clone());
        }
    }

    pub(crate) fn get(&self, id: &SandboxId) -> Result<Handle, SandboxError> {
        self.lock().sandboxes.get(id).cloned().ok_or_else(|| SandboxError::NotFound(id.to_string()))
    }

    /// Whether this id was a sandbox of this engine that has been removed.
    pub(crate) fn was_removed(&self, id: &SandboxId) -> bool {
        self.lock().removed.contains(id)
    }

    /// All, oldest first.
    pub(crate) fn infos(&self) -> Vec<SandboxInfo> {
        let mut infos: Vec<_> =
            self.lock().sandboxes.values().map(|h| h.view.borrow().info.clone()).collect();
        infos.sort_by(|a, b| (a.created_at_unix, &a.id).cmp(&(b.created_at_unix, &b.id)));
        infos
    }

    /// Lets go of all tasks: they end, and the sandboxes run on by themselves.
    pub(crate) fn clear(&self) {
        self.lock().sandboxes.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// An error where nothing can be run in it now.
    pub(crate) fn check_running(&self) -> Result<(), SandboxError> {
        let view = self.view.borrow();
        match view.life {
            Life::Running => Ok(()),
            Life::Ended => Err(ended(&view.info)),
            Life::Starting | Life::Paused | Life::Stopping => {
                Err(SandboxError::NotRunning { id: view.info.id.clone(), state: view.life.name() })
            }
        }
    }

    /// Resolves when it runs no longer, with what to tell whoever waits for its agent.
    pub(crate) async fn over(&self) -> SandboxError {
        let mut view = self.view.clone();
        let over = |v: &View| matches!(v.life, Life::Stopping | Life::Ended);
        match view.wait_for(over).await {
            Ok(view) if view.life == Life::Ended => ended(&view.info),
            Ok(view) => SandboxError::NotRunning { id: view.info.id.clone(), state: view.life.name() },
            Err(_) => SandboxError::NotFound(self.id.to_string()),
        }
    }
}

fn ended(info: &SandboxInfo) -> SandboxError {
    let reason = info.ended.clone().unwrap_or_else(|| "for an unknown reason".to_owned());
    SandboxError::Ended { id: info.id.clone(), reason }
}
