//! Frames in both directions. A frame crosses the tap in one call, behind a `virtio_net_hdr`.

use std::fs::File;
use std::io::{self, Read, Write};

use vm_memory::{GuestMemory, ReadVolatile, WriteVolatile};
use vm_memory::{GuestMemoryError, Permissions, VolatileMemoryError, VolatileSlice};

use crate::GuestRam;
use crate::virtio::chain::{Segment, read_bytes, total_len, write_bytes};

/// Length of the header before every frame, on the rings and on the tap.
pub(super) const HEADER_LEN: u64 = 12;
/// Largest frame, header included: the guest may leave segmentation to the host.
pub(super) const MAX_FRAME: u64 = HEADER_LEN + 14 + 65536;

/// Sends one frame out. `buffer` is used for frames in several pieces.
pub(super) fn transmit(
    tap: &mut File,
    ram: &GuestRam,
    segments: &[Segment],
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    if let Some(slice) = only_slice(ram, segments) {
        return tap.write_volatile(&slice).map(drop).map_err(io_error);
    }
    buffer.resize(usize::try_from(total_len(segments)).unwrap_or(0), 0);
    read_bytes(ram, segments, 0, buffer).map_err(io::Error::other)?;
    tap.write(buffer).map(drop)
}

/// Takes one frame in; the answer is its length, header included. A frame longer than the buffers is cut,
/// as the tap does it.
pub(super) fn receive(
    tap: &mut File,
    ram: &GuestRam,
    segments: &[Segment],
    buffer: &mut Vec<u8>,
) -> io::Result<u32> {
    let len = if let Some(mut slice) = only_slice(ram, segments) {
        tap.read_volatile(&mut slice).map_err(io_error)?
    } else {
        buffer.resize(usize::try_from(total_len(segments).min(MAX_FRAME)).unwrap_or(0), 0);
        let len = tap.read(buffer)?;
        write_bytes(ram, segments, 0, buffer.get(..len).unwrap_or_default()).map_err(io::Error::other)?;
        len
    };
    Ok(u32::try_from(len).unwrap_or(0))
}

/// Frames in one piece, which is the rule, need no copy.
fn only_slice<'a>(ram: &'a GuestRam, segments: &[Segment]) -> Option<VolatileSlice<'a, ()>> {
    let [segment] = segments else { return None };
    let len = usize::try_from(segment.len).ok()?;
    let mut slices = ram.get_slices(segment.addr, len, Permissions::ReadWrite).ok()?;
    slices.next()?.ok().filter(|slice| slice.len() == len)
}

fn io_error(error: VolatileMemoryError) -> io::Error {
    match error {
        VolatileMemoryError::IOError(error) => error,
        other => io::Error::other(GuestMemoryError::from(other)),
    }
}
