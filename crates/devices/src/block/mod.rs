//! The block device: a read-only base, frozen layers over it, and one private writable top.
//!
//! ```text
//!   read block b:   top, if its bit is set ─▶ highest frozen layer that has b ─▶ base ─▶ zeros past its end
//!   write block b:  always to the top; what the write does not cover is copied up first
//!   branch:         the top becomes the highest frozen layer, an empty file the new top; nothing is copied
//! ```
//!
//! The unit is 4 KiB. The frozen layers are merged into one sorted table when the disk is built, so a
//! lookup costs one binary search whatever the length of the chain.
//!
//! All files are read and written at explicit positions: base and layers are shared descriptors, and a
//! file position shared with the monitors of other children would be a race.

mod device;
mod disk;
mod io;
mod lower;
mod state;
#[cfg(test)]
mod tests;
mod top;

pub use device::{Block, BlockConfig, BlockResources};
pub use disk::{Disk, DiskError};
pub use lower::DiskLayer;
pub use state::BlockStateV1;

/// The unit of layers and extents, in bytes.
pub const BLOCK_SIZE: u64 = forkd_memory::PAGE_SIZE;
/// The unit of the virtio protocol, in bytes.
pub const SECTOR_SIZE: u64 = 512;
