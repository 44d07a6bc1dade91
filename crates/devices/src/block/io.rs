//! Requests: header, data, one status byte.

use std::io;
use std::ops::Range;

use virtio_bindings::virtio_blk as blk;

use super::SECTOR_SIZE;
use super::device::{MAX_ZERO_RANGES, MAX_ZERO_SECTORS, SEG_MAX, SIZE_MAX};
use super::disk::Disk;
use crate::GuestRam;
use crate::virtio::chain::{Buffers, read_bytes, total_len, write_bytes};

/// Data buffers, header and status, and some room for drivers that split the header.
pub(super) const MAX_BUFFERS: usize = SEG_MAX as usize + 4;
const MAX_DATA: u64 = SEG_MAX as u64 * SIZE_MAX as u64;
const HEADER_LEN: u64 = 16;
const RANGE_LEN: u64 = 16;

/// What became of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Bytes written to guest memory, status included.
    pub(super) written: u32,
    pub(super) guest_fault: bool,
    pub(super) host_error: bool,
}

/// Why a request did not succeed.
enum Refusal {
    /// Malformed or out of bounds: the guest's fault.
    Malformed,
    /// Well-formed, but nothing this device does.
    Unsupported,
    /// The host failed, or guest memory vanished.
    Host,
}

impl From<io::Error> for Refusal {
    fn from(_: io::Error) -> Self {
        Self::Host
    }
}

/// Serves one request, whose buffers lie in guest memory.
pub(super) fn serve(disk: &mut Disk, id: &[u8], ram: &GuestRam, buffers: &Buffers) -> Outcome {
    let Some(status_at) = total_len(buffers.writable()).checked_sub(1) else {
        return Outcome { guest_fault: true, ..Outcome::default() };
    };
    let mut outcome = Outcome::default();
    let (status, data_written) = match perform(disk, id, ram, buffers, status_at) {
        Ok(written) => (blk::VIRTIO_BLK_S_OK, written),
        Err(Refusal::Unsupported) => (blk::VIRTIO_BLK_S_UNSUPP, 0),
        Err(Refusal::Malformed) => {
            outcome.guest_fault = true;
            (blk::VIRTIO_BLK_S_IOERR, 0)
        }
        Err(Refusal::Host) => {
            outcome.host_error = true;
            (blk::VIRTIO_BLK_S_IOERR, 0)
        }
    };
    put_status(ram, buffers, status_at, status);
    outcome.written = u32::try_from(data_written + 1).unwrap_or(1);
    outcome
}

/// Answers a request whose chain is malformed, if there is a place for the answer.
pub(super) fn refuse(ram: &GuestRam, buffers: &Buffers) -> u32 {
    match total_len(buffers.writable()).checked_sub(1) {
        Some(status_at) => {
            put_status(ram, buffers, status_at, blk::VIRTIO_BLK_S_IOERR);
            1
        }
        None => 0,
    }
}

fn put_status(ram: &GuestRam, buffers: &Buffers, at: u64, status: u32) {
    let byte = u8::try_from(status).unwrap_or(u8::MAX);
    // The buffer was checked to lie in guest memory, which never shrinks.
    let _ = write_bytes(ram, buffers.writable(), at, &[byte]);
}

/// The answer is the number of bytes written before the status.
fn perform(
    disk: &mut Disk,
    id: &[u8],
    ram: &GuestRam,
    buffers: &Buffers,
    status_at: u64,
) -> Result<u64, Refusal> {
    let mut header = [0u8; 16];
    if copy_in(ram, buffers, 0, &mut header).is_err() {
        return Err(Refusal::Malformed);
    }
    let [k0, k1, k2, k3, _, _, _, _, sector @ ..] = header;
    let (kind, sector) = (u32::from_le_bytes([k0, k1, k2, k3]), u64::from_le_bytes(sector));
    let data_in = total_len(buffers.readable()) - HEADER_LEN;
    match kind {
        blk::VIRTIO_BLK_T_IN => {
            let range = checked_range(disk, sector, status_at)?;
            disk.read(range, |at, piece| copy_out(ram, buffers, at, piece))?;
            Ok(status_at)
        }
        blk::VIRTIO_BLK_T_OUT => {
            let range = checked_range(disk, sector, data_in)?;
            disk.write(range, |at, piece| copy_in(ram, buffers, HEADER_LEN + at, piece))?;
            Ok(0)
        }
        // Not offered, and nothing to do if it comes: see `Block::features`.
        blk::VIRTIO_BLK_T_FLUSH => Ok(0),
        blk::VIRTIO_BLK_T_GET_ID => {
            let len = usize::try_from(status_at).unwrap_or(usize::MAX).min(id.len());
            let id = id.get(..len).unwrap_or_default();
            copy_out(ram, buffers, 0, id)?;
            Ok(u64::try_from(len).unwrap_or(0))
        }
        blk::VIRTIO_BLK_T_DISCARD | blk::VIRTIO_BLK_T_WRITE_ZEROES => {
            zero_ranges(disk, ram, buffers, data_in, kind == blk::VIRTIO_BLK_T_WRITE_ZEROES)?;
            Ok(0)
        }
        _ => Err(Refusal::Unsupported),
    }
}

fn zero_ranges(
    disk: &mut Disk,
    ram: &GuestRam,
    buffers: &Buffers,
    data_len: u64,
    exact: bool,
) -> Result<(), Refusal> {
    let count = data_len / RANGE_LEN;
    if !data_len.is_multiple_of(RANGE_LEN) || count == 0 || count > u64::from(MAX_ZERO_RANGES) {
        return Err(Refusal::Malformed);
    }
    for index in 0..count {
        let mut entry = [0u8; 16];
        copy_in(ram, buffers, HEADER_LEN + index * RANGE_LEN, &mut entry)?;
        let [sector @ .., n0, n1, n2, n3, f0, f1, f2, f3] = entry;
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        let allowed = if exact { blk::VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
        if flags & !allowed != 0 {
            return Err(Refusal::Unsupported);
        }
        let len = u64::from(sectors) * SECTOR_SIZE;
        let range = range_on(disk, u64::from_le_bytes(sector), len)
            .filter(|_| sectors <= MAX_ZERO_SECTORS)
            .ok_or(Refusal::Malformed)?;
        disk.zero(range, exact)?;
    }
    Ok(())
}

fn checked_range(disk: &Disk, sector: u64, len: u64) -> Result<Range<u64>, Refusal> {
    let whole = len.is_multiple_of(SECTOR_SIZE) && len <= MAX_DATA;
    range_on(disk, sector, len).filter(|_| whole).ok_or(Refusal::Malformed)
}

fn range_on(disk: &Disk, sector: u64, len: u64) -> Option<Range<u64>> {
    let start = sector.checked_mul(SECTOR_SIZE)?;
    let range = start..start.checked_add(len)?;
    disk.contains(&range).then_some(range)
}

fn copy_in(ram: &GuestRam, buffers: &Buffers, at: u64, to: &mut [u8]) -> io::Result<()> {
    match read_bytes(ram, buffers.readable(), at, to) {
        Ok(len) if len == to.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn copy_out(ram: &GuestRam, buffers: &Buffers, at: u64, from: &[u8]) -> io::Result<()> {
    match write_bytes(ram, buffers.writable(), at, from) {
        Ok(len) if len == from.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
