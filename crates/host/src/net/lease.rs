//! A slot that a sandbox has.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use forkd_protocol::rest::{NetStats, NetworkPolicy};

use super::slot::{Enforcer, Slot};
use super::{NetError, Network, traffic};

/// A slot that is lent to one sandbox. Dropping it gives it back beside, unless it is to be [kept](Lease::keep).
#[derive(Debug)]
pub struct Lease {
    slot: Option<Slot>,
    network: Network,
    keep: bool,
    policing: Policing,
}

/// Changes what a slot lets out, and tells what went through it, as long as it is lent to the same sandbox. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Policing {
    /// Of which slot.
    name: Arc<str>,
    index: u32,
    /// What had gone through it when it was lent.
    before: NetStats,
    lent: Arc<Mutex<Option<Arc<Enforcer>>>>,
}

impl Lease {
    pub(super) fn new(slot: Slot, network: Network, before: NetStats) -> Self {
        let lent = Arc::new(Mutex::new(Some(slot.enforcer())));
        let policing = Policing { name: slot.name().into(), index: slot.index(), before, lent };
        Self { slot: Some(slot), network, keep: false, policing }
    }

    /// The name of its namespace, by which it is [found](Network::find) again.
    pub fn name(&self) -> &str {
        &self.policing.name
    }

    /// What had gone through the slot when it was lent: whoever finds it again has to know.
    pub fn before(&self) -> NetStats {
        self.policing.before
    }

    /// The tap, once: for a monitor, which is the only one to have it.
    pub fn take_tap(&mut self) -> Option<File> {
        self.slot.as_mut().and_then(Slot::take_tap)
    }

    /// By what its policy is changed.
    pub fn policing(&self) -> Policing {
        self.policing.clone()
    }

    /// It outlives this handle, and this process.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Its guest is gone, and nothing has the tap any more; blocks.
    pub fn give_back(mut self) {
        if let Some(slot) = self.slot.take() {
            self.policing.end();
            self.network.give_back(slot);
        }
    }
}

impl Policing {
    /// From one instant to the next another policy holds, also for connections that are open; blocks.
    ///
    /// # Errors
    /// It cannot be enforced, and what held before holds still; or the slot is not lent any more.
    pub fn set(&self, policy: &NetworkPolicy) -> Result<(), NetError> {
        let lent = self.lock();
        let enforcer = lent.as_ref().ok_or_else(|| NetError::Gone(self.name.to_string()))?;
        enforcer.enforce(policy)
    }

    /// What went through since it was lent; nothing where it is not any more.
    pub fn traffic(&self) -> Option<NetStats> {
        let lent = self.lock();
        lent.as_ref()?;
        traffic::of_slot(self.index).map(|now| traffic::since(&self.before, &now))
    }

    /// The slot is about to be somebody else's.
    fn end(&self) {
        self.lock().take();
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Enforcer>>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take().filter(|_| !self.keep) else { return };
        // Dropped by a request that was given up, maybe on a thread of the runtime, which must not wait.
        let (network, policing) = (self.network.clone(), self.policing.clone());
        thread::spawn(move || {
            policing.end();
            network.give_back(slot);
        });
    }
}
