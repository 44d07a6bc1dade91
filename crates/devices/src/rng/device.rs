//! The virtio side: one queue, no configuration.

use std::fs::File;
use std::os::fd::RawFd;

use super::{RngStateV1, io};
use crate::virtio::chain::Buffers;
use crate::virtio::{DeviceRestoreError, Rings, VirtioDevice, copy_config};

const QUEUE: usize = 0;
const MAX_BUFFERS: usize = 64;

/// What an entropy device is handed.
#[derive(Debug)]
pub struct RngResources {
    /// An endless source of random bytes: the host's `/dev/urandom`.
    pub source: File,
}

/// A virtio entropy device.
#[derive(Debug)]
pub struct Rng {
    source: File,
    buffers: Buffers,
}

impl Rng {
    /// A device that hands out what `source` gives.
    #[must_use]
    pub fn new(resources: RngResources) -> Self {
        Self { source: resources.source, buffers: Buffers::default() }
    }
}

impl VirtioDevice for Rng {
    type State = RngStateV1;
    type Resources = RngResources;

    const DEVICE_ID: u32 = virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
    /// Linux has one request under way at a time.
    const QUEUE_SIZES: &'static [u16] = &[16];

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&[], offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, _rings: &mut Rings<'_>) {}

    fn reset(&mut self) {}

    fn process_queue(&mut self, _index: usize, rings: &mut Rings<'_>) {
        while let Some(chain) = rings.pop(QUEUE) {
            let usable = chain.collect(MAX_BUFFERS, &mut self.buffers).is_ok()
                && self.buffers.readable().is_empty()
                && !self.buffers.writable().is_empty();
            if !usable {
                rings.fault();
            }
            // If the host has no entropy the guest gets none: it then keeps to its other sources.
            let filled = if usable {
                io::fill(&self.source, rings.ram(), self.buffers.writable()).unwrap_or(0)
            } else {
                0
            };
            rings.put(QUEUE, chain.head(), filled);
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        None
    }

    fn on_event(&mut self, _rings: &mut Rings<'_>) {}

    fn save(&self) -> RngStateV1 {
        RngStateV1 {}
    }

    fn restore(state: RngStateV1, resources: RngResources) -> Result<Self, DeviceRestoreError> {
        let RngStateV1 {} = state;
        Ok(Self::new(resources))
    }
}
