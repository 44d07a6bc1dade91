//! One queue, with the rules that `virtio_queue::Queue` leaves to its user.

use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT};

use super::{Chain, DeviceRestoreError, QueueStateV1};
use crate::GuestRam;

/// The guest broke the ring itself; the queue is not served again until it is reset.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the guest broke the ring")]
pub struct RingBroken;

/// A queue and what happened to it since the guest was last told.
#[derive(Debug)]
pub(crate) struct VirtQueue {
    pub(crate) ring: Queue,
    pub(crate) broken: bool,
    /// Chains were given back that the guest may not have been interrupted for.
    used: bool,
}

impl VirtQueue {
    pub(crate) fn new(max_size: u16) -> Result<Self, virtio_queue::Error> {
        Ok(Self { ring: Queue::new(max_size)?, broken: false, used: false })
    }

    pub(crate) fn reset(&mut self) {
        self.ring.reset();
        self.broken = false;
        self.used = false;
    }

    pub(crate) fn save(&self) -> QueueStateV1 {
        QueueStateV1::save(&self.ring, self.broken)
    }

    pub(crate) fn restore(
        state: QueueStateV1,
        index: usize,
        max_expected: u16,
        live: bool,
        ram: &GuestRam,
    ) -> Result<Self, DeviceRestoreError> {
        let (ring, broken) = state.restore(index, max_expected, live, ram)?;
        Ok(Self { ring, broken, used: false })
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.ring.ready() && !self.broken
    }

    /// Takes the next chain. `None` means that the queue is empty *and* the guest will notify about the
    /// next one: the check is repeated after asking for that, so nothing slips in between.
    pub(crate) fn pop<'a>(&mut self, ram: &'a GuestRam) -> Result<Option<Chain<'a>>, RingBroken> {
        if self.is_empty(ram)? && !self.ring.enable_notification(ram).map_err(|_| RingBroken)? {
            return Ok(None);
        }
        let head = self.ring.iter(ram).map_err(|_| RingBroken)?.next().ok_or(RingBroken)?;
        Ok(Some(Chain::new(head)))
    }

    /// Makes the chain that was popped last available again.
    pub(crate) fn undo_pop(&mut self) {
        self.ring.go_to_previous_position();
    }

    pub(crate) fn is_empty(&self, ram: &GuestRam) -> Result<bool, RingBroken> {
        let avail = self.ring.avail_idx(ram, Ordering::Acquire).map_err(|_| RingBroken)?;
        Ok(avail.0 == self.ring.next_avail())
    }

    /// The guest's own index of the available ring.
    pub(crate) fn avail_index(&self, ram: &GuestRam) -> Result<u16, RingBroken> {
        self.ring.avail_idx(ram, Ordering::Acquire).map(|index| index.0).map_err(|_| RingBroken)
    }

    /// Asks to be notified about the very next chain the guest adds after `seen`, although older ones
    /// are still waiting. The answer is whether it has added one already.
    pub(crate) fn notify_after(&mut self, ram: &GuestRam, seen: u16) -> Result<bool, RingBroken> {
        // The event index that virtio-queue writes is the position up to which it has taken chains.
        let taken = self.ring.next_avail();
        self.ring.set_next_avail(seen);
        let moved = self.ring.enable_notification(ram);
        self.ring.set_next_avail(taken);
        moved.map_err(|_| RingBroken)
    }

    pub(crate) fn put(&mut self, ram: &GuestRam, head: u16, len: u32) -> Result<(), RingBroken> {
        self.used = true;
        self.ring.add_used(ram, head, len).map_err(|_| RingBroken)
    }

    /// Whether the guest wants an interrupt for what was given back.
    pub(crate) fn wants_interrupt(&mut self, ram: &GuestRam) -> Result<bool, RingBroken> {
        if !std::mem::take(&mut self.used) {
            return Ok(false);
        }
        self.ring.needs_notification(ram).map_err(|_| RingBroken)
    }
}
