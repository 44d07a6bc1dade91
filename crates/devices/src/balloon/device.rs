//! The virtio side: three queues, and how many pages there should be in the balloon.

use std::os::fd::RawFd;

use super::{BalloonStateV1, io};
use crate::virtio::chain::Buffers;
use crate::virtio::{DeviceRestoreError, Rings, VirtioDevice, copy_config};

/// The guest may take pages out of the balloon before it runs out of memory.
const DEFLATE_ON_OOM: u64 = 2;
/// The guest reports free pages.
const REPORTING_FEATURE: u64 = 5;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
/// Queues that are not offered (statistics, free page hints) have no number.
const REPORTING: usize = 2;
/// Most ranges of one report; Linux sends 32.
const MAX_BUFFERS: usize = 64;
/// Where the driver writes how many pages there are in the balloon.
const ACTUAL: u64 = 4;

/// A virtio balloon.
#[derive(Debug, Default)]
pub struct Balloon {
    actual: u32,
    buffers: Buffers,
}

impl Balloon {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves one chain; false where it makes no sense.
    fn serve(&self, index: usize, rings: &Rings<'_>) -> bool {
        match index {
            INFLATE => io::inflate(rings.ram(), self.buffers.readable()).is_ok(),
            // The pages are the guest's again, and come back by themselves as it writes to them.
            DEFLATE => true,
            REPORTING => {
                io::give_back(rings.ram(), self.buffers.writable());
                true
            }
            _ => false,
        }
    }
}

impl VirtioDevice for Balloon {
    type State = BalloonStateV1;
    type Resources = ();

    const DEVICE_ID: u32 = virtio_bindings::virtio_ids::VIRTIO_ID_BALLOON;
    const QUEUE_SIZES: &'static [u16] = &[128, 128, 128];

    fn features(&self) -> u64 {
        1 << DEFLATE_ON_OOM | 1 << REPORTING_FEATURE
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        // How many pages the host wants: none.
        let mut config = [0; 8];
        config[4..].copy_from_slice(&self.actual.to_le_bytes());
        copy_config(&config, offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        if let (ACTUAL, Ok(actual)) = (offset, data.try_into()) {
            self.actual = u32::from_le_bytes(actual);
        }
    }

    fn activate(&mut self, _rings: &mut Rings<'_>) {}

    fn reset(&mut self) {
        self.actual = 0;
    }

    fn process_queue(&mut self, index: usize, rings: &mut Rings<'_>) {
        while let Some(chain) = rings.pop(index) {
            let usable = chain.collect(MAX_BUFFERS, &mut self.buffers).is_ok();
            if !(usable && self.serve(index, rings)) {
                rings.fault();
            }
            rings.put(index, chain.head(), 0);
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        None
    }

    fn on_event(&mut self, _rings: &mut Rings<'_>) {}

    fn save(&self) -> BalloonStateV1 {
        BalloonStateV1 { actual: self.actual }
    }

    fn restore(state: BalloonStateV1, (): ()) -> Result<Self, DeviceRestoreError> {
        let BalloonStateV1 { actual } = state;
        Ok(Self { actual, buffers: Buffers::default() })
    }
}
