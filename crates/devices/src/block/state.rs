//! The saved form of a block device.

use serde::{Deserialize, Serialize};

use super::device::{Block, BlockConfig, BlockResources, ID_LEN};
use super::disk::{Disk, DiskError};
use crate::virtio::DeviceRestoreError;

/// A block device. The blocks themselves are in the layers; what the top held becomes one of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockStateV1 {
    /// Size in bytes.
    pub bytes: u64,
    /// What the guest sees as the disk's serial number.
    pub id: [u8; ID_LEN],
    /// Blocks that layers and top together held: the layers that a restore is handed must hold as many.
    pub overlaid_blocks: u64,
}

pub(super) fn save(block: &Block) -> BlockStateV1 {
    BlockStateV1 {
        bytes: block.disk().bytes(),
        id: *block.id(),
        overlaid_blocks: block.disk().overlaid_blocks(),
    }
}

pub(super) fn restore(state: BlockStateV1, resources: BlockResources) -> Result<Block, DeviceRestoreError> {
    let BlockStateV1 { bytes, id, overlaid_blocks } = state;
    let BlockResources { base, layers, top } = resources;
    let disk = Disk::new(base, layers, top, bytes).map_err(|error| match error {
        DiskError::Extents => DeviceRestoreError::Unfit("a disk layer's extents"),
        DiskError::Size(_) => DeviceRestoreError::Unfit("the size of the disk"),
        DiskError::Base(error) => DeviceRestoreError::Io(error),
    })?;
    // A chain may have been flattened since, so layers cannot be compared one to one; but a chain that
    // lacks one must not start.
    if disk.overlaid_blocks() < overlaid_blocks {
        return Err(DeviceRestoreError::Unfit("the disk layers hold fewer blocks than the saved disk"));
    }
    Ok(Block::with_disk(disk, BlockConfig { id }))
}
