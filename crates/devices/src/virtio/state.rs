//! The saved form of the virtio core.

use serde::{Deserialize, Serialize};
use virtio_queue::{Queue, QueueState, QueueT};

use super::DeviceRestoreError;
use crate::GuestRam;

/// A transport, its queues and the device behind it (`D`, the device's own saved form).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportStateV1<D> {
    /// Virtio device type.
    pub device_id: u32,
    /// Features the driver accepted so far.
    pub driver_features: u64,
    /// Page of the offered features that the driver looks at.
    pub device_features_select: u32,
    /// Page of the accepted features that the driver writes.
    pub driver_features_select: u32,
    /// Queue that the driver configures.
    pub queue_select: u32,
    /// The device status register.
    pub status: u32,
    /// Interrupt causes the driver has not acknowledged.
    pub interrupt_status: u32,
    /// Counts changes of the configuration space.
    pub config_generation: u32,
    /// The queues, by index.
    pub queues: Vec<QueueStateV1>,
    /// The device's own part.
    pub device: D,
}

/// One queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStateV1 {
    /// Largest size the device allows.
    pub max_size: u16,
    /// Size the driver chose.
    pub size: u16,
    /// The driver has finished setting it up.
    pub ready: bool,
    /// The guest broke it; it stays unserved until a reset.
    pub broken: bool,
    /// Interrupts and notifications are suppressed by index.
    pub event_idx: bool,
    /// Next entry to take from the available ring.
    pub next_avail: u16,
    /// Next entry to fill in the used ring.
    pub next_used: u16,
    /// Guest address of the descriptor table.
    pub desc_table: u64,
    /// Guest address of the available ring.
    pub avail_ring: u64,
    /// Guest address of the used ring.
    pub used_ring: u64,
}

impl QueueStateV1 {
    pub(crate) fn save(queue: &Queue, broken: bool) -> Self {
        let QueueState {
            max_size,
            next_avail,
            next_used,
            event_idx_enabled,
            size,
            ready,
            desc_table,
            avail_ring,
            used_ring,
        } = queue.state();
        Self {
            max_size,
            size,
            ready,
            broken,
            event_idx: event_idx_enabled,
            next_avail,
            next_used,
            desc_table,
            avail_ring,
            used_ring,
        }
    }

    /// The queue and whether it is broken; `live` demands that a ready queue lies in guest memory.
    pub(crate) fn restore(
        self,
        index: usize,
        max_expected: u16,
        live: bool,
        ram: &GuestRam,
    ) -> Result<(Queue, bool), DeviceRestoreError> {
        let Self {
            max_size,
            size,
            ready,
            broken,
            event_idx,
            next_avail,
            next_used,
            desc_table,
            avail_ring,
            used_ring,
        } = self;
        if max_size != max_expected {
            return Err(DeviceRestoreError::Queue(index));
        }
        let queue = Queue::try_from(QueueState {
            max_size,
            next_avail,
            next_used,
            event_idx_enabled: event_idx,
            size,
            ready,
            desc_table,
            avail_ring,
            used_ring,
        })
        .map_err(|_| DeviceRestoreError::Queue(index))?;
        if live && ready && !broken && !queue.is_valid(ram) {
            return Err(DeviceRestoreError::Queue(index));
        }
        Ok((queue, broken))
    }
}
