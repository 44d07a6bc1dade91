//! A device's view of its queues while it works.

use super::queue::{RingBroken, VirtQueue};
use super::{Chain, Interrupt};
use crate::GuestRam;
use crate::faults::GuestFaults;

/// Most chains served for one notification. A guest that refills a queue as fast as it is emptied must
/// not keep the event loop from the other devices, so the rest waits for the loop's next turn.
const CHAINS_PER_TURN: u32 = 512;

/// Guest memory, queues and interrupt, lent to a device for one call.
///
/// Interrupts need no thought: the transport sends what the guest wants to hear when the call returns.
#[derive(Debug)]
pub struct Rings<'a> {
    ram: &'a GuestRam,
    queues: &'a mut [VirtQueue],
    interrupt: &'a mut Interrupt,
    faults: &'a GuestFaults,
    features: u64,
    budget: u32,
    unfinished: u64,
}

impl<'a> Rings<'a> {
    pub(crate) fn new(
        ram: &'a GuestRam,
        queues: &'a mut [VirtQueue],
        interrupt: &'a mut Interrupt,
        faults: &'a GuestFaults,
        features: u64,
    ) -> Self {
        Self { ram, queues, interrupt, faults, features, budget: CHAINS_PER_TURN, unfinished: 0 }
    }

    /// Guest memory.
    #[must_use]
    pub fn ram(&self) -> &'a GuestRam {
        self.ram
    }

    /// The features the driver accepted.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Takes the next chain of a queue. `None`: it is empty and the guest will notify, or it is broken,
    /// or this turn is used up and another one has been asked for.
    pub fn pop(&mut self, index: usize) -> Option<Chain<'a>> {
        if self.budget == 0 {
            self.unfinished |= 1 << index;
            return None;
        }
        let ram = self.ram;
        let chain = self.with_queue(index, |queue| queue.pop(ram)).flatten()?;
        self.budget -= 1;
        Some(chain)
    }

    /// Makes the chain popped last from this queue available again, unused.
    pub fn undo_pop(&mut self, index: usize) {
        if let Some(queue) = self.queues.get_mut(index) {
            queue.undo_pop();
        }
    }

    /// Gives a chain back with `len` bytes written to it.
    pub fn put(&mut self, index: usize, head: u16, len: u32) {
        let ram = self.ram;
        self.with_queue(index, |queue| queue.put(ram, head, len));
    }

    /// The guest's index of the available ring: it moves whenever the guest adds a chain.
    pub fn avail_index(&mut self, index: usize) -> Option<u16> {
        let ram = self.ram;
        self.with_queue(index, |queue| queue.avail_index(ram))
    }

    /// Asks to be notified of the first chain added after [`Rings::avail_index`] was `seen`, though older
    /// chains still wait; `true` if it has been added already.
    pub fn notify_after(&mut self, index: usize, seen: u16) -> bool {
        let ram = self.ram;
        self.with_queue(index, |queue| queue.notify_after(ram, seen)).unwrap_or(false)
    }

    /// Counts something the guest did wrong.
    pub fn fault(&self) {
        self.faults.record();
    }

    /// Asks for another call for this queue although the guest did not notify.
    pub fn call_again(&mut self, index: usize) {
        self.unfinished |= 1 << index;
    }

    fn with_queue<T>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut VirtQueue) -> Result<T, RingBroken>,
    ) -> Option<T> {
        let queue = self.queues.get_mut(index).filter(|queue| queue.is_usable())?;
        match work(queue) {
            Ok(done) => Some(done),
            Err(RingBroken) => {
                queue.broken = true;
                self.faults.record();
                None
            }
        }
    }

    /// Interrupts the guest where it wants that. The answer names the queues to be called for again.
    pub(crate) fn finish(self) -> u64 {
        let mut wanted = false;
        for queue in self.queues.iter_mut().filter(|queue| queue.is_usable()) {
            match queue.wants_interrupt(self.ram) {
                Ok(wants) => wanted |= wants,
                Err(RingBroken) => {
                    queue.broken = true;
                    self.faults.record();
                }
            }
        }
        if wanted {
            self.interrupt.used_buffers();
        }
        self.unfinished
    }
}
