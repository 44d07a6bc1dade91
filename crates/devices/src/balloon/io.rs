//! Requests: pages to be given back.

use forkd_memory::PAGE_SIZE;
use forkd_memory::discard::discard;

use crate::GuestRam;
use crate::virtio::chain::{Segment, read_bytes};

/// Most page numbers of one request; Linux sends as many.
const MAX_NUMBERS: usize = 256;

/// The guest asked for something that makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nonsense;

/// Gives reported ranges back; the guest holds them until it is answered. A host that refuses only loses the memory.
pub(super) fn give_back(ram: &GuestRam, ranges: &[Segment]) {
    for range in ranges {
        let _ = discard(ram, range.addr.0, u64::from(range.len));
    }
}

/// Gives back the pages whose numbers the buffers list.
pub(super) fn inflate(ram: &GuestRam, numbers: &[Segment]) -> Result<(), Nonsense> {
    let mut bytes = [0u8; MAX_NUMBERS * 4];
    let read = read_bytes(ram, numbers, 0, &mut bytes).map_err(|_| Nonsense)?;
    for number in bytes.get(..read).unwrap_or_default().chunks_exact(4) {
        let page = u32::from_le_bytes(number.try_into().map_err(|_| Nonsense)?);
        discard(ram, u64::from(page) * PAGE_SIZE, PAGE_SIZE).map_err(|_| Nonsense)?;
    }
    Ok(())
}
