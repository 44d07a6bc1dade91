//! The virtio side: configuration space and queue.

use std::fs::File;
use std::os::fd::RawFd;

use virtio_bindings::{virtio_blk as blk, virtio_ids::VIRTIO_ID_BLOCK};

use super::disk::{Disk, DiskError};
use super::lower::DiskLayer;
use super::{BLOCK_SIZE, BlockStateV1, SECTOR_SIZE, io, state};
use crate::virtio::chain::Buffers;
use crate::virtio::{DeviceRestoreError, Rings, VirtioDevice, copy_config};

/// Length of a disk's serial number.
pub(super) const ID_LEN: usize = blk::VIRTIO_BLK_ID_BYTES as usize;
/// Most data buffers of a request.
pub(super) const SEG_MAX: u32 = 126;
/// Largest data buffer: with [`SEG_MAX`] it bounds the time that one request takes.
pub(super) const SIZE_MAX: u32 = 256 * 1024;
/// Most sectors of one discard or write-zeroes range (1 GiB).
pub(super) const MAX_ZERO_SECTORS: u32 = 1 << 21;
/// Most ranges of one discard or write-zeroes request.
pub(super) const MAX_ZERO_RANGES: u32 = 16;

const QUEUE: usize = 0;
const CONFIG_LEN: usize = 60;

/// What a user chooses about a disk.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockConfig {
    /// What the guest sees as the disk's serial number, padded with zeros.
    pub id: [u8; ID_LEN],
}

/// The files of a disk.
#[derive(Debug)]
pub struct BlockResources {
    /// Read-only.
    pub base: File,
    /// Read-only, the lowest first.
    pub layers: Vec<DiskLayer>,
    /// Writable, private to this machine, empty.
    pub top: File,
}

/// A virtio block device.
#[derive(Debug)]
pub struct Block {
    disk: Disk,
    id: [u8; ID_LEN],
    config: [u8; CONFIG_LEN],
    buffers: Buffers,
    host_errors: u64,
}

impl Block {
    /// A disk as large as its base (whole sectors).
    ///
    /// # Errors
    /// Files that do not make a disk.
    pub fn new(config: BlockConfig, resources: BlockResources) -> Result<Self, DiskError> {
        let BlockResources { base, layers, top } = resources;
        let len = base.metadata()?.len();
        let disk = Disk::new(base, layers, top, len - len % SECTOR_SIZE)?;
        Ok(Self::with_disk(disk, config))
    }

    pub(super) fn with_disk(disk: Disk, config: BlockConfig) -> Self {
        let space = config_space(disk.bytes());
        Self { disk, id: config.id, config: space, buffers: Buffers::default(), host_errors: 0 }
    }

    /// See [`Disk::freeze_top`]. The device must be at rest.
    pub fn freeze_top(&mut self, new_top: File, frozen: Option<File>) {
        self.disk.freeze_top(new_top, frozen);
    }

    /// The disk behind the device.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Requests that failed because the host could not read or write a file.
    #[must_use]
    pub fn host_errors(&self) -> u64 {
        self.host_errors
    }

    pub(super) fn id(&self) -> &[u8; ID_LEN] {
        &self.id
    }
}

impl VirtioDevice for Block {
    type State = BlockStateV1;
    type Resources = BlockResources;

    const DEVICE_ID: u32 = VIRTIO_ID_BLOCK;
    const QUEUE_SIZES: &'static [u16] = &[128];

    /// No FLUSH: a write is in the host's page cache when it completes, where every later reader (a
    /// snapshot, the store) sees it, and the top does not outlive a crash of the host anyway. The guest
    /// then takes the disk for write-through and saves the exits.
    fn features(&self) -> u64 {
        [
            blk::VIRTIO_BLK_F_SIZE_MAX,
            blk::VIRTIO_BLK_F_SEG_MAX,
            blk::VIRTIO_BLK_F_BLK_SIZE,
            blk::VIRTIO_BLK_F_TOPOLOGY,
            blk::VIRTIO_BLK_F_DISCARD,
            blk::VIRTIO_BLK_F_WRITE_ZEROES,
        ]
        .iter()
        .fold(0, |bits, feature| bits | 1 << feature)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&self.config, offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, _rings: &mut Rings<'_>) {}

    fn reset(&mut self) {}

    fn process_queue(&mut self, _index: usize, rings: &mut Rings<'_>) {
        while let Some(chain) = rings.pop(QUEUE) {
            let written = match chain.collect(io::MAX_BUFFERS, &mut self.buffers) {
                Ok(()) => {
                    let outcome = io::serve(&mut self.disk, &self.id, rings.ram(), &self.buffers);
                    if outcome.guest_fault {
                        rings.fault();
                    }
                    self.host_errors += u64::from(outcome.host_error);
                    outcome.written
                }
                Err(_) => {
                    rings.fault();
                    io::refuse(rings.ram(), &self.buffers)
                }
            };
            rings.put(QUEUE, chain.head(), written);
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        None
    }

    fn on_event(&mut self, _rings: &mut Rings<'_>) {}

    fn save(&self) -> BlockStateV1 {
        state::save(self)
    }

    fn restore(state: BlockStateV1, resources: BlockResources) -> Result<Self, DeviceRestoreError> {
        state::restore(state, resources)
    }
}

/// `struct virtio_blk_config` up to the write-zeroes fields.
fn config_space(bytes: u64) -> [u8; CONFIG_LEN] {
    let mut space = [0; CONFIG_LEN];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(field) = space.get_mut(at..at + value.len()) {
            field.copy_from_slice(value);
        }
    };
    put(0, &(bytes / SECTOR_SIZE).to_le_bytes());
    put(8, &SIZE_MAX.to_le_bytes());
    put(12, &SEG_MAX.to_le_bytes());
    put(20, &512u32.to_le_bytes()); // logical block size
    put(24, &[3, 0]); // a physical block is 2^3 logical ones: smaller writes are copied up
    put(26, &8u16.to_le_bytes()); // smallest good I/O, in logical blocks
    put(36, &MAX_ZERO_SECTORS.to_le_bytes()); // discard
    put(40, &MAX_ZERO_RANGES.to_le_bytes());
    put(44, &(8u32).to_le_bytes()); // discard alignment, in sectors: one block
    put(48, &MAX_ZERO_SECTORS.to_le_bytes()); // write zeroes
    put(52, &MAX_ZERO_RANGES.to_le_bytes());
    put(56, &[1]); // writing zeroes may give blocks back
    debug_assert_eq!(BLOCK_SIZE, 8 * SECTOR_SIZE);
    space
}
