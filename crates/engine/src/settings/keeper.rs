//! The settings of one sandbox, where everybody finds them.

use std::sync::atomic::{AtomicBool, AtomicU64};

use forkd_protocol::names::SandboxId;
use forkd_store::Store;
use tokio::sync::watch;

use super::Settings;
use super::activity::Activity;
use crate::engine::blocking;
use crate::error::EngineError;
use crate::publish::Listening;

/// Read by everybody, changed one at a time, and in the registry before anybody sees it.
#[derive(Debug)]
pub(crate) struct Keeper {
    now: watch::Sender<Settings>,
    turn: tokio::sync::Mutex<()>,
    /// Held from writing a policy of its network down until that holds: the last one that is written is the one that holds.
    pub(crate) network_turn: tokio::sync::Mutex<()>,
    /// Its time is over, and something is being done about that.
    pub(super) ending: AtomicBool,
    /// That failed: not before this, milliseconds since the Unix epoch, again.
    pub(super) again_at_ms: AtomicU64,
    /// What is asked of it.
    pub(crate) activity: Activity,
    /// Where it is listened for it.
    pub(crate) listening: Listening,
}

impl Keeper {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            now: watch::Sender::new(settings),
            turn: tokio::sync::Mutex::default(),
            network_turn: tokio::sync::Mutex::default(),
            ending: AtomicBool::default(),
            again_at_ms: AtomicU64::default(),
            activity: Activity::new(),
            listening: Listening::default(),
        }
    }

    pub(crate) fn get(&self) -> Settings {
        self.now.borrow().clone()
    }

    /// What one part of them is.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Settings) -> T) -> T {
        at(&self.now.borrow())
    }

    /// Changes them.
    pub(crate) async fn change(
        &self,
        store: &Store,
        id: &SandboxId,
        change: impl FnOnce(&mut Settings),
    ) -> Result<(), EngineError> {
        let _turn = self.turn.lock().await;
        let mut next = self.get();
        change(&mut next);
        let (store, row) = (store.clone(), [(id.clone(), next.text())]);
        blocking(move || store.put_settings(&row)).await??;
        self.now.send_replace(next);
        Ok(())
    }
}
