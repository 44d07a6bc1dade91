//! A slot that a sandbox has.

use std::fs::File;
use std::thread;

use forkd_protocol::rest::NetworkPolicy;

use super::slot::Slot;
use super::{NetError, Network};

/// A slot that is lent to one sandbox. Dropping it gives it back beside, unless it is to be [kept](Lease::keep).
#[derive(Debug)]
pub struct Lease {
    slot: Option<Slot>,
    network: Network,
    keep: bool,
}

impl Lease {
    pub(super) fn new(slot: Slot, network: Network) -> Self {
        Self { slot: Some(slot), network, keep: false }
    }

    /// The name of its namespace, by which it is [found](Network::find) again.
    pub fn name(&self) -> &str {
        self.slot.as_ref().map_or("", Slot::name)
    }

    /// The tap, once: for a monitor, which is the only one to have it.
    pub fn take_tap(&mut self) -> Option<File> {
        self.slot.as_mut().and_then(Slot::take_tap)
    }

    /// From one instant to the next another policy holds, also for connections that are open; blocks.
    ///
    /// # Errors
    /// It cannot be enforced. What held before holds still.
    pub fn set_policy(&self, policy: &NetworkPolicy) -> Result<(), NetError> {
        self.slot.as_ref().map_or(Ok(()), |slot| slot.enforce(policy))
    }

    /// It outlives this handle, and this process.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// Its guest is gone, and nothing has the tap any more; blocks.
    pub fn give_back(mut self) {
        if let Some(slot) = self.slot.take() {
            self.network.give_back(slot);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(slot) = self.slot.take().filter(|_| !self.keep) else { return };
        // Dropped by a request that was given up, maybe on a thread of the runtime, which must not wait.
        let network = self.network.clone();
        thread::spawn(move || network.give_back(slot));
    }
}
