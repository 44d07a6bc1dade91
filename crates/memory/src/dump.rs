//! Writing guest pages out as a layer.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion};

use crate::changed::Pagemap;
use crate::extents::{Extent, ExtentsBuilder};
use crate::{GuestRam, PAGE_SIZE};

/// Pages written with one system call at most (1 MiB).
const RUN_PAGES: u64 = 256;

/// Writes every page that may differ from zero into `out` (sparse, offset = guest-physical address) and
/// returns the extents written. The machine must stand still.
///
/// `changed` are the pages with content of their own; pages that only come from a layer below are found
/// through `below`. A page that is all zero is not stored.
///
/// # Errors
/// Writing failed, for instance because the disk is full.
pub fn write_flat(
    ram: &GuestRam,
    pagemap: &Pagemap,
    below: &[Extent],
    out: &File,
) -> io::Result<Vec<Extent>> {
    let mut candidates = ExtentsBuilder::default();
    let mut lower = below.iter().flat_map(|e| e.first_page..e.end()).peekable();
    pagemap.each_changed(ram, |page| {
        while let Some(older) = lower.next_if(|older| *older <= page) {
            if older < page {
                candidates.push(older);
            }
        }
        candidates.push(page);
    })?;
    lower.for_each(|page| candidates.push(page));
    write_pages(ram, &candidates.finish(), out)
}

/// Writes the non-zero pages among `candidates` and returns the extents written.
///
/// # Errors
/// Writing failed, or a candidate does not lie in RAM.
pub fn write_pages(ram: &GuestRam, candidates: &[Extent], out: &File) -> io::Result<Vec<Extent>> {
    out.set_len(end_of(ram))?;
    let mut written = ExtentsBuilder::default();
    let mut run = Run::default();
    for page in candidates.iter().flat_map(|e| e.first_page..e.end()) {
        let host = host_page(ram, page)?;
        if is_zero(host) {
            continue;
        }
        written.push(page);
        if !run.extend(page, host) {
            run.flush(out)?;
            run.extend(page, host);
        }
    }
    run.flush(out)?;
    Ok(written.finish())
}

/// The address behind the last byte of RAM: the length of a layer.
pub(crate) fn end_of(ram: &GuestRam) -> u64 {
    ram.iter().map(|r| r.start_addr().0 + r.len()).max().unwrap_or(0)
}

/// Consecutive pages waiting to be written with one call.
#[derive(Debug, Default)]
pub(crate) struct Run {
    first_page: u64,
    host: u64,
    pages: u64,
}

impl Run {
    /// Takes one more page; false where it does not follow those that wait.
    pub(crate) fn extend(&mut self, page: u64, host: HostPage) -> bool {
        if self.pages == 0 {
            *self = Run { first_page: page, host: host.0, pages: 1 };
            return true;
        }
        let follows = page == self.first_page + self.pages && host.0 == self.host + self.pages * PAGE_SIZE;
        let fits = follows && self.pages < RUN_PAGES;
        self.pages += u64::from(fits);
        fits
    }

    pub(crate) fn flush(&mut self, out: &File) -> io::Result<()> {
        let run = std::mem::take(self);
        write_all_at(out, run.host, run.pages * PAGE_SIZE, run.first_page * PAGE_SIZE)
    }
}

/// Host address of a page of guest RAM, known to be mapped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostPage(u64);

pub(crate) fn host_page(ram: &GuestRam, page: u64) -> io::Result<HostPage> {
    let outside =
        || io::Error::new(io::ErrorKind::InvalidInput, "a page to be written lies outside guest RAM");
    let address = page.checked_mul(PAGE_SIZE).ok_or_else(outside)?;
    let region = ram.find_region(GuestAddress(address)).ok_or_else(outside)?;
    Ok(HostPage(region.as_ptr() as u64 + (address - region.start_addr().0)))
}

pub(crate) fn is_zero(page: HostPage) -> bool {
    static ZERO: [u8; PAGE_SIZE as usize] = [0; PAGE_SIZE as usize];
    // SAFETY: `page` is a mapped page of guest RAM and `ZERO` is as long; the C library reads both and nothing else.
    // The machine stands still, so nobody writes to the page meanwhile.
    unsafe { libc::memcmp(page.0 as *const libc::c_void, ZERO.as_ptr().cast(), ZERO.len()) == 0 }
}

fn write_all_at(out: &File, host: u64, len: u64, offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let n = pwrite(out, host + done, len - done, offset + done)?;
        done += n;
    }
    Ok(())
}

fn pwrite(out: &File, host: u64, len: u64, offset: u64) -> io::Result<u64> {
    let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off_t::try_from(offset).map_err(|_| too_large())?;
    let len = usize::try_from(len).map_err(|_| too_large())?;
    loop {
        // SAFETY: `[host, host + len)` is mapped guest RAM for as long as `ram` lives, which outlives the call;
        // the kernel only reads it.
        let n = unsafe { libc::pwrite(out.as_raw_fd(), host as *const libc::c_void, len, offset) };
        match u64::try_from(n) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => return Ok(n),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Convenience for callers that hold /proc as a descriptor: [`write_flat`] with a fresh pagemap.
///
/// # Errors
/// As [`write_flat`]; or the pagemap cannot be opened.
pub fn write_all(
    ram: &GuestRam,
    proc_dir: BorrowedFd<'_>,
    below: &[Extent],
    out: &File,
) -> io::Result<Vec<Extent>> {
    write_flat(ram, &Pagemap::open(proc_dir)?, below, out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use vm_memory::Bytes;

    use super::*;
    use crate::layout::{HOLE_END, Layout};
    use crate::map;

    const HOLE: u64 = 256 << 10;
    const SIZE: u64 = 512 << 10;

    fn dump(ram: &GuestRam, below: &[Extent]) -> (File, Vec<Extent>) {
        let out = tempfile::tempfile().unwrap();
        let extents = write_all(ram, File::open("/proc").unwrap().as_fd(), below, &out).unwrap();
        (out, extents)
    }

    fn page_number(index: u64) -> u64 {
        let low = HOLE / PAGE_SIZE;
        if index < low { index } else { HOLE_END / PAGE_SIZE + index - low }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_flat_dump_holds_exactly_the_pages_that_are_not_zero(
            first in proptest::collection::btree_map(0u64..128, 0u8..4, 0..60),
            second in proptest::collection::btree_map(0u64..128, 0u8..4, 0..60),
        ) {
            let layout = Layout::with_hole(SIZE, HOLE);
            let ram = map::anonymous(&layout).unwrap();
            for (index, value) in &first {
                ram.write_slice(&[*value; 4096], GuestAddress(page_number(*index) * PAGE_SIZE)).unwrap();
            }
            let (base, below) = dump(&ram, &[]);
            let child = map::layered(&layout, base).unwrap();
            let mut model: BTreeMap<u64, u8> = first.clone();
            for (index, value) in &second {
                child.write_slice(&[*value; 4096], GuestAddress(page_number(*index) * PAGE_SIZE)).unwrap();
                model.insert(*index, *value);
            }
            let (flat, extents) = dump(&child, &below);
            let stored: Vec<u64> = extents.iter().flat_map(|e| e.first_page..e.end()).collect();
            let expected: Vec<u64> =
                model.iter().filter(|(_, v)| **v != 0).map(|(i, _)| page_number(*i)).collect();
            prop_assert_eq!(stored, expected);
            for (index, value) in model {
                let mut page = [0u8; 4096];
                flat.read_exact_at(&mut page, page_number(index) * PAGE_SIZE).unwrap();
                prop_assert!(page.iter().all(|b| *b == value));
            }
        }
    }
}
