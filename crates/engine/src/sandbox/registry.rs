//! Where everybody but the task itself finds a sandbox.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_host::net::Policing;
use forkd_protocol::error::chain;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use super::{Command, Life, SandboxError, Turns};
use crate::config::Bounds;
use crate::engine::blocking;
use crate::error::EngineError;
use crate::guest::{Guest, GuestError};
use crate::monitor::{Launcher, Monitor, RunDir};
use crate::settings::Keeper;

/// How many ids of removed sandboxes are remembered, so that removing one again succeeds.
const REMEMBERED: usize = 4096;

/// How often a guest that does not hear is told to go on.
const THAW_ATTEMPTS: u32 = 5;

/// What others may know about a sandbox; written by its task alone.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) life: Life,
    pub(crate) info: SandboxInfo,
    /// By what the policy of its network is changed, where it has one.
    pub(crate) policing: Option<Policing>,
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
    pub(crate) settings: Arc<Keeper>,
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
        let mut infos: Vec<_> = self.lock().sandboxes.values().map(Handle::info).collect();
        infos.sort_by(|a, b| (a.created_at_unix, &a.id).cmp(&(b.created_at_unix, &b.id)));
        infos
    }

    /// What `look` tells of each of which it tells something.
    pub(crate) fn of_each<T>(&self, look: impl Fn(&View) -> Option<T>) -> Vec<T> {
        self.lock().sandboxes.values().filter_map(|h| look(&h.view.borrow())).collect()
    }

    /// How to reach each.
    pub(crate) fn all(&self) -> Vec<Handle> {
        self.lock().sandboxes.values().cloned().collect()
    }

    /// Lets go of all tasks: they end, and the sandboxes run on by themselves.
    pub(crate) fn clear(&self) {
        self.lock().sandboxes.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As [`Handle::removed_or_ended`], without the handle.
pub(crate) async fn removed_or_ended(mut view: watch::Receiver<View>) {
    let _ = view.wait_for(|view| matches!(view.life, Life::Stopping | Life::Ended)).await;
}

impl View {
    /// Shows which process it is and which network it has, or that it has neither.
    pub(super) fn embody(&mut self, monitor: Option<&Monitor>) {
        self.info.pid = monitor.map(|monitor| monitor.process().pid());
        self.info.netns = monitor.and_then(Monitor::netns).map(str::to_owned);
        self.policing = monitor.and_then(Monitor::policing);
    }

    /// An error where nothing can be run in it now.
    pub(super) fn check_running(&self) -> Result<(), SandboxError> {
        match self.life {
            Life::Running => Ok(()),
            Life::Ended => Err(ended(&self.info)),
            life => Err(SandboxError::NotRunning { id: self.info.id.clone(), state: life.name() }),
        }
    }

    /// An error where there is nothing to continue.
    pub(super) fn check_paused(&self) -> Result<(), SandboxError> {
        match self.life {
            Life::Paused => Ok(()),
            Life::Ended => Err(ended(&self.info)),
            life => Err(SandboxError::NotPaused { id: self.info.id.clone(), state: life.name() }),
        }
    }
}

impl Handle {
    /// An error where nothing can be run in it now.
    pub(crate) fn check_running(&self) -> Result<(), SandboxError> {
        self.view.borrow().check_running()
    }

    /// An error where there is nothing to continue.
    pub(crate) fn check_paused(&self) -> Result<(), SandboxError> {
        self.view.borrow().check_paused()
    }

    /// As clients see it.
    pub(crate) fn info(&self) -> SandboxInfo {
        let mut info = self.view.borrow().info.clone();
        self.settings.look(|settings| {
            info.settings = settings.shown();
            info.network.clone_from(&settings.network);
            info.settings.published = self.settings.listening.shown(&settings.published);
            if let Some(template) = &settings.template {
                info.snapshot_tag.clone_from(template);
            }
        });
        info
    }

    /// Resolves when it is on its way to nowhere: it runs, is on the disk, or is over.
    pub(crate) async fn settled(&self) {
        let mut view = self.view.clone();
        let moving = |v: &View| matches!(v.life, Life::Starting | Life::Pausing | Life::Resuming);
        // One whose task has ended does not move either.
        let _ = view.wait_for(|v| !moving(v)).await;
    }

    /// Resolves when it is being removed, has ended, or nobody looks after it any more.
    pub(crate) fn removed_or_ended(&self) -> impl Future<Output = ()> + Send + use<> {
        removed_or_ended(self.view.clone())
    }

    /// Resolves when it runs no longer, with what to tell whoever waits for its agent.
    pub(crate) async fn over(&self) -> SandboxError {
        let mut view = self.view.clone();
        let over = |v: &View| matches!(v.life, Life::Paused | Life::Stopping | Life::Ended);
        let view = view.wait_for(over).await;
        let error = view.ok().and_then(|view| view.check_running().err());
        error.unwrap_or_else(|| SandboxError::NotFound(self.id.to_string()))
    }

    /// Has the workload stand still, under the guard of a monitor that can. Where it does not, it goes on.
    pub(crate) async fn freeze(
        &self,
        launcher: &Arc<Launcher>,
        guarded: bool,
    ) -> Result<Result<(), GuestError>, EngineError> {
        // While the workload still runs, so that nobody waits for it.
        if self.settings.look(|s| !s.secrets.for_guest().is_empty())
            && let Err(e) = self.guest.flush(launcher.bounds()).await
        {
            return Ok(Err(e));
        }
        if guarded {
            let (launcher, dir) = (Arc::clone(launcher), self.dir.clone());
            blocking(move || launcher.guard(&dir)).await??;
        }
        let bounds = launcher.bounds();
        let frozen = tokio::select! {
            frozen = self.guest.freeze(bounds) => frozen.map(drop),
            over = self.over() => return Err(over.into()),
        };
        if frozen.is_err() {
            self.thaw(bounds).await;
        }
        Ok(frozen)
    }

    /// The workload goes on whatever came before, with its secrets. A guest that does not hear is told again.
    pub(crate) async fn thaw(&self, bounds: &Bounds) {
        for attempt in 1..=THAW_ATTEMPTS {
            tokio::select! {
                told = self.guest.thaw(bounds, self.settings.look(|s| s.secrets.for_guest())) => match told {
                    Ok(()) => return,
                    Err(e) => warn!(sandbox = %self.id, attempt, error = %chain(&e), "the workload was not thawed"),
                },
                _ = self.over() => return,
            }
        }
    }
}

fn ended(info: &SandboxInfo) -> SandboxError {
    let reason = info.ended.clone().unwrap_or_else(|| "for an unknown reason".to_owned());
    SandboxError::Ended { id: info.id.clone(), reason }
}
