//! A disk of base, frozen layers and top, addressed in bytes. Knows nothing of virtio.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use forkd_memory::extents::Extent;

use super::lower::{DiskLayer, Lower, read_or_zeros};
use super::top::Top;
use super::{BLOCK_SIZE, SECTOR_SIZE};

/// Largest disk: bounds what a state file can make the monitor allocate (32 MiB of presence bits).
const MAX_BYTES: u64 = 1 << 40;
/// How much is read or written at once. Small, since it stays resident once a guest used its disk.
const CHUNK: usize = 32 * 1024;

/// Why files do not make a disk.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// A layer's extents are unsorted, overlap or lie past the end of the disk.
    #[error("a disk layer's extents are out of order or past the end of the disk")]
    Extents,
    /// The disk is empty, larger than 1 TiB or no whole number of sectors.
    #[error("a disk of {0} bytes is not possible")]
    Size(u64),
    /// The base could not be looked at.
    #[error("the base of the disk could not be looked at")]
    Base(#[from] io::Error),
}

/// See the [module](super).
#[derive(Debug)]
pub struct Disk {
    lower: Lower,
    top: Top,
    bytes: u64,
    /// Between file and guest memory; allocated by the first request.
    buffer: Vec<u8>,
}

impl Disk {
    /// Builds a disk. `layers` go from the lowest to the highest; `top` must be empty.
    ///
    /// # Errors
    /// Impossible sizes and extents.
    pub fn new(base: File, layers: Vec<DiskLayer>, top: File, bytes: u64) -> Result<Self, DiskError> {
        if bytes == 0 || bytes > MAX_BYTES || !bytes.is_multiple_of(SECTOR_SIZE) {
            return Err(DiskError::Size(bytes));
        }
        let blocks = bytes.div_ceil(BLOCK_SIZE);
        Ok(Self {
            lower: Lower::new(base, layers, blocks)?,
            top: Top::new(top, blocks),
            bytes,
            buffer: Vec::new(),
        })
    }

    /// Size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a range lies on the disk.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.start <= range.end && range.end <= self.bytes
    }

    /// Reads `range` piece by piece; `sink` gets each piece and its distance from the start.
    ///
    /// # Errors
    /// The host's, or the sink's.
    pub fn read(
        &mut self,
        range: Range<u64>,
        mut sink: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let Self { lower, top, buffer, .. } = self;
        buffer.resize(CHUNK, 0);
        let mut at = range.start;
        while at < range.end {
            let piece = piece(at, range.end, buffer);
            let mut offset = at;
            let mut rest = &mut *piece;
            while !rest.is_empty() {
                let block = offset / BLOCK_SIZE;
                let left = u64::try_from(rest.len()).unwrap_or(u64::MAX);
                let (present, run) = top.run(block, (offset % BLOCK_SIZE + left).div_ceil(BLOCK_SIZE));
                let same = ((block + run) * BLOCK_SIZE - offset).min(left);
                let (head, tail) = rest.split_at_mut(usize::try_from(same).unwrap_or(usize::MAX));
                match present {
                    true => read_or_zeros(&top.file, offset, head)?,
                    false => lower.read_at(offset, head)?,
                }
                offset += same;
                rest = tail;
            }
            sink(at - range.start, piece)?;
            at = offset;
        }
        Ok(())
    }

    /// Writes `range` piece by piece; `source` fills each piece, given its distance from the start.
    ///
    /// # Errors
    /// The host's, or the source's; what was written until then stays.
    pub fn write(
        &mut self,
        range: Range<u64>,
        mut source: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.buffer.resize(CHUNK, 0);
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = range.start;
        let mut outcome = Ok(());
        while at < range.end && outcome.is_ok() {
            let piece = piece(at, range.end, &mut buffer);
            outcome = source(at - range.start, piece).and_then(|()| self.store(at, piece));
            at += u64::try_from(piece.len()).unwrap_or(u64::MAX);
        }
        self.buffer = buffer;
        outcome
    }

    /// Makes a range read as zeros. With `exact` unset, blocks that are only partly in it may stay.
    ///
    /// # Errors
    /// The host's.
    pub fn zero(&mut self, range: Range<u64>, exact: bool) -> io::Result<()> {
        let first = range.start.div_ceil(BLOCK_SIZE);
        let end = range.end / BLOCK_SIZE;
        let fill = |_: u64, piece: &mut [u8]| {
            piece.fill(0);
            Ok(())
        };
        if first >= end {
            return if exact { self.write(range, fill) } else { Ok(()) };
        }
        self.top.zero(first, end - first)?;
        if exact {
            self.write(range.start..first * BLOCK_SIZE, fill)?;
            self.write(end * BLOCK_SIZE..range.end, fill)?;
        }
        Ok(())
    }

    /// Number of blocks written since the top was empty.
    #[must_use]
    pub fn top_blocks(&self) -> u64 {
        self.top.count()
    }

    /// Number of blocks that layers and top together hold, so that the base is not asked for them.
    #[must_use]
    pub fn overlaid_blocks(&self) -> u64 {
        self.lower.overlaid_blocks(&self.top.extents())
    }

    /// What the top holds.
    #[must_use]
    pub fn top_extents(&self) -> Vec<Extent> {
        self.top.extents()
    }

    /// Which file is written to: its inode number.
    ///
    /// # Errors
    /// The host's.
    pub fn top_inode(&self) -> io::Result<u64> {
        Ok(self.top.file.metadata()?.ino())
    }

    /// The old top becomes the highest frozen layer and is never written again; it is read through `frozen`, which is the
    /// same file, where that is given, and the descriptor that could write is closed. `new_top` is an empty file.
    pub fn freeze_top(&mut self, new_top: File, frozen: Option<File>) {
        let extents = self.top.extents();
        let blocks = self.bytes.div_ceil(BLOCK_SIZE);
        let old = std::mem::replace(&mut self.top, Top::new(new_top, blocks));
        self.lower.push(frozen.unwrap_or(old.file), &extents);
    }

    /// Writes `piece` at `offset`. Where that fails, blocks that were absent are so again: bytes that no extent
    /// names would spoil the layer that the top becomes.
    fn store(&mut self, offset: u64, piece: &[u8]) -> io::Result<()> {
        let end = offset + u64::try_from(piece.len()).unwrap_or(u64::MAX);
        self.store_whole(offset, end, piece)
            .inspect_err(|_| self.top.clear_absent(offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE)))
    }

    /// Writes `piece` at `offset..end`, having copied up the blocks that it covers only in part.
    fn store_whole(&mut self, offset: u64, end: u64, piece: &[u8]) -> io::Result<()> {
        if !offset.is_multiple_of(BLOCK_SIZE) {
            self.copy_up(offset / BLOCK_SIZE)?;
        }
        // At the end of the disk the last block may be short by nature.
        if !end.is_multiple_of(BLOCK_SIZE) && end < self.bytes {
            self.copy_up(end / BLOCK_SIZE)?;
        }
        self.top.file.write_all_at(piece, offset)?;
        // Only now: had the write failed, the blocks would still read as they were.
        (offset / BLOCK_SIZE..end.div_ceil(BLOCK_SIZE)).for_each(|block| self.top.mark(block));
        Ok(())
    }

    fn copy_up(&mut self, block: u64) -> io::Result<()> {
        if self.top.has(block) {
            return Ok(());
        }
        let mut old = [0u8; 4096];
        self.lower.read_at(block * BLOCK_SIZE, &mut old)?;
        self.top.file.write_all_at(&old, block * BLOCK_SIZE)?;
        self.top.mark(block);
        Ok(())
    }
}

/// The part of the buffer for the next piece of `at..end`: pieces end at chunk boundaries of the disk, so
/// that only the first and the last can cover a block in part.
fn piece(at: u64, end: u64, buffer: &mut [u8]) -> &mut [u8] {
    let chunk = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
    let boundary = (at / chunk + 1) * chunk;
    let len = usize::try_from(boundary.min(end) - at).unwrap_or(0);
    buffer.get_mut(..len).unwrap_or_default()
}
