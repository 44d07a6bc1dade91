//! One request: a descriptor chain, walked and checked once.

use std::ops::Range;

use virtio_queue::DescriptorChain;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, Permissions, VolatileSlice};

use crate::GuestRam;

/// A chain that the guest made available and that must be given back exactly once.
#[derive(Debug)]
pub struct Chain<'a> {
    inner: DescriptorChain<&'a GuestRam>,
}

/// One buffer of a chain: checked to lie in guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Guest address.
    pub addr: GuestAddress,
    /// Length in bytes, never 0.
    pub len: u32,
}

/// What is wrong with a chain.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ChainFault {
    /// No descriptor could be read, or the chain loops, breaks off, or its indirect table lies.
    #[error("the descriptor chain is empty, cut short or loops")]
    Broken,
    /// More buffers than the device announced.
    #[error("the descriptor chain has more buffers than allowed")]
    TooLong,
    /// A buffer is (partly) outside guest memory.
    #[error("a buffer lies outside guest memory")]
    OutsideMemory,
    /// A readable buffer follows a writable one.
    #[error("a readable buffer follows a writable one")]
    Disordered,
}

/// The buffers of one chain, readable ones first. Kept and used again, so that serving a request
/// allocates nothing.
#[derive(Debug, Default)]
pub struct Buffers {
    segments: Vec<Segment>,
    readable: usize,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(inner: DescriptorChain<&'a GuestRam>) -> Self {
        Self { inner }
    }

    /// The chain's number, which gives it back.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.inner.head_index()
    }

    /// Walks the chain into `buffers`, at most `max` of them.
    ///
    /// # Errors
    /// Whatever the guest did wrong; `buffers` then holds what came before.
    pub fn collect(&self, max: usize, buffers: &mut Buffers) -> Result<(), ChainFault> {
        buffers.segments.clear();
        buffers.readable = 0;
        let ram: &GuestRam = self.inner.memory();
        let mut expects_more = true;
        for descriptor in self.inner.clone() {
            expects_more = descriptor.has_next();
            let (addr, len) = (descriptor.addr(), descriptor.len());
            if len == 0 {
                continue;
            }
            if buffers.segments.len() == max {
                return Err(ChainFault::TooLong);
            }
            let (access, is_readable) = match descriptor.is_write_only() {
                true => (Permissions::Write, false),
                false => (Permissions::Read, true),
            };
            if !usize::try_from(len).is_ok_and(|len| ram.check_range(addr, len, access)) {
                return Err(ChainFault::OutsideMemory);
            }
            if is_readable {
                if buffers.readable < buffers.segments.len() {
                    return Err(ChainFault::Disordered);
                }
                buffers.readable += 1;
            }
            buffers.segments.push(Segment { addr, len });
        }
        // A well-formed chain ends at a descriptor that names no next one; everything else (loops, bad
        // indices, lying tables) ends the walk early.
        if expects_more { Err(ChainFault::Broken) } else { Ok(()) }
    }
}

impl Buffers {
    /// What the device may read.
    #[must_use]
    pub fn readable(&self) -> &[Segment] {
        self.segments.get(..self.readable).unwrap_or_default()
    }

    /// What the device may write.
    #[must_use]
    pub fn writable(&self) -> &[Segment] {
        self.segments.get(self.readable..).unwrap_or_default()
    }
}

/// Total length of some buffers.
#[must_use]
pub fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Calls `each` for the guest memory behind bytes `range` of `segments`, in order.
///
/// # Errors
/// Memory that vanished, or the first error of `each`.
pub fn for_each_slice<'a, E>(
    ram: &'a GuestRam,
    segments: &[Segment],
    range: Range<u64>,
    mut each: impl FnMut(VolatileSlice<'a, ()>) -> Result<(), E>,
) -> Result<(), E>
where
    E: From<vm_memory::GuestMemoryError>,
{
    let mut start = 0u64;
    for segment in segments {
        let end = start.saturating_add(u64::from(segment.len));
        let (from, to) = (range.start.max(start), range.end.min(end));
        if from < to {
            let addr = segment.addr.unchecked_add(from - start);
            let len = usize::try_from(to - from).unwrap_or(usize::MAX);
            for slice in ram.get_slices(addr, len, Permissions::ReadWrite)? {
                each(slice?)?;
            }
        }
        start = end;
    }
    Ok(())
}

/// Copies from the start of `segments` (moved on by `offset`) into `to`; short where they end.
///
/// # Errors
/// Memory that vanished.
pub fn read_bytes(
    ram: &GuestRam,
    segments: &[Segment],
    offset: u64,
    to: &mut [u8],
) -> Result<usize, vm_memory::GuestMemoryError> {
    let mut done = 0usize;
    let wanted = u64::try_from(to.len()).unwrap_or(u64::MAX);
    for_each_slice(ram, segments, offset..offset.saturating_add(wanted), |slice| {
        let part = to.get_mut(done..done + slice.len()).unwrap_or_default();
        done += slice.read(part, 0)?;
        Ok::<_, vm_memory::GuestMemoryError>(())
    })?;
    Ok(done)
}

/// Copies `from` to `offset` bytes into `segments`; short where they end.
///
/// # Errors
/// Memory that vanished.
pub fn write_bytes(
    ram: &GuestRam,
    segments: &[Segment],
    offset: u64,
    from: &[u8],
) -> Result<usize, vm_memory::GuestMemoryError> {
    let mut done = 0usize;
    let wanted = u64::try_from(from.len()).unwrap_or(u64::MAX);
    for_each_slice(ram, segments, offset..offset.saturating_add(wanted), |slice| {
        let part = from.get(done..done + slice.len()).unwrap_or_default();
        done += slice.write(part, 0)?;
        Ok::<_, vm_memory::GuestMemoryError>(())
    })?;
    Ok(done)
}
