//! Requests: a chain of buffers to fill.

use std::fs::File;
use std::io;

use vm_memory::{GuestMemoryError, ReadVolatile};

use crate::GuestRam;
use crate::virtio::chain::{Segment, for_each_slice, total_len};

/// Most bytes of one answer; a guest that wants more asks again.
const MAX_BYTES: u64 = 64 * 1024;

/// Fills the buffers from `source`; the answer is how many bytes that were.
pub(super) fn fill(mut source: &File, ram: &GuestRam, segments: &[Segment]) -> io::Result<u32> {
    let len = total_len(segments).min(MAX_BYTES);
    for_each_slice(ram, segments, 0..len, |mut slice| {
        source.read_exact_volatile(&mut slice)?;
        Ok::<_, GuestMemoryError>(())
    })
    .map_err(io::Error::other)?;
    Ok(u32::try_from(len).unwrap_or(0))
}
