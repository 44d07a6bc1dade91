//! The writable top of a disk: a sparse file and one bit per block.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use forkd_memory::extents::{Extent, ExtentsBuilder};
use vmm_sys_util::fallocate::{FallocateMode, fallocate};

use super::BLOCK_SIZE;

/// Private, writable, empty when the disk is built.
#[derive(Debug)]
pub(super) struct Top {
    pub(super) file: File,
    /// One bit per block. Allocated as zeroed memory, so that what stays untouched is never resident.
    present: Vec<u64>,
    blocks: u64,
}

impl Top {
    pub(super) fn new(file: File, blocks: u64) -> Self {
        let words = usize::try_from(blocks.div_ceil(64)).unwrap_or(usize::MAX);
        Self { file, present: vec![0; words], blocks }
    }

    pub(super) fn has(&self, block: u64) -> bool {
        let word = usize::try_from(block / 64).ok().and_then(|index| self.present.get(index));
        word.is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    pub(super) fn mark(&mut self, block: u64) {
        let word = usize::try_from(block / 64).ok().and_then(|index| self.present.get_mut(index));
        if let Some(word) = word {
            *word |= 1 << (block % 64);
        }
    }

    /// Length, in blocks, of the run from `block` on that is all present or all absent; at most `max`.
    pub(super) fn run(&self, block: u64, max: u64) -> (bool, u64) {
        let present = self.has(block);
        let same = (1..max).find(|ahead| self.has(block + ahead) != present);
        (present, same.unwrap_or(max))
    }

    /// Makes `count` blocks from `first` on present and zero, without writing them where the file system
    /// can punch holes.
    pub(super) fn zero(&mut self, first: u64, count: u64) -> io::Result<()> {
        let (mut offset, mut len) = (first * BLOCK_SIZE, count * BLOCK_SIZE);
        // Also where the blocks are absent: a write that failed halfway may have left bytes there.
        if fallocate(&self.file, FallocateMode::PunchHole, true, offset, len).is_err() {
            let zeros = [0u8; 4096];
            while len > 0 {
                self.file.write_all_at(&zeros, offset)?;
                offset += BLOCK_SIZE;
                len -= BLOCK_SIZE;
            }
        }
        (first..first + count).for_each(|block| self.mark(block));
        Ok(())
    }

    /// Takes away what a failed write left in blocks that are absent. The host has just refused a write; where it
    /// refuses this too, the store will notice the stray bytes.
    pub(super) fn clear_absent(&mut self, blocks: Range<u64>) {
        for block in blocks.filter(|block| !self.has(*block)) {
            let _ = fallocate(&self.file, FallocateMode::PunchHole, true, block * BLOCK_SIZE, BLOCK_SIZE);
        }
    }

    /// Number of present blocks.
    pub(super) fn count(&self) -> u64 {
        self.present.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The present blocks as a table.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let mut table = ExtentsBuilder::default();
        for (base, word) in (0..self.blocks).step_by(64).zip(&self.present) {
            if *word != 0 {
                let set = (0..64).filter(|bit| word & (1 << bit) != 0);
                set.for_each(|bit| table.push(base + bit));
            }
        }
        table.finish()
    }
}
