//! Which pages a machine changed against the layers it is mapped from.
//!
//! In a private file mapping a page was changed exactly if it is (present or swapped) and not file-backed: the
//! kernel made an anonymous copy for the first write, whoever wrote (the guest, a device of ours, KVM's own
//! kvm-clock). A page given back by `madvise` is file-backed again and counts as unchanged. In anonymous RAM the
//! same rule gives every page that was ever touched. Source: Documentation/admin-guide/mm/pagemap.rst.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd};
use std::os::unix::fs::FileExt;

use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use crate::extents::{Extent, ExtentsBuilder};
use crate::{GuestRam, PAGE_SIZE};

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
/// Entries read at a time (32 KiB).
const BATCH: usize = 4096;

/// Room for the entries that are read at a time.
#[derive(Debug)]
pub struct PagemapBuffer(Box<[u8]>);

impl Default for PagemapBuffer {
    fn default() -> Self {
        Self(vec![0; BATCH * 8].into())
    }
}

/// The pagemap of this process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl Pagemap {
    /// Opens `self/pagemap` below a descriptor of /proc. After `fork(2)` the copy must open its own: a pagemap
    /// opened before shows the memory of the process that opened it.
    ///
    /// # Errors
    /// The kernel's refusal, for instance where the process is not dumpable.
    pub fn open(proc_dir: BorrowedFd<'_>) -> io::Result<Self> {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        // SAFETY: the path is a NUL-terminated literal and the directory descriptor is borrowed for the call.
        let fd = unsafe { libc::openat(proc_dir.as_raw_fd(), c"self/pagemap".as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just opened and nobody else owns it.
        Ok(Self { file: unsafe { File::from_raw_fd(fd) } })
    }

    /// Calls `found` with the number of each changed guest page, ascending.
    ///
    /// # Errors
    /// Reading the pagemap failed.
    pub fn each_changed(&self, ram: &GuestRam, mut found: impl FnMut(u64)) -> io::Result<()> {
        self.each_changed_with(ram, &mut PagemapBuffer::default(), |page| {
            found(page);
            Ok(())
        })
    }

    /// The same for a caller that must not allocate; ends at the first error of `found`.
    ///
    /// # Errors
    /// Reading the pagemap failed, or `found` did.
    pub fn each_changed_with(
        &self,
        ram: &GuestRam,
        buffer: &mut PagemapBuffer,
        mut found: impl FnMut(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        for region in ram.iter() {
            let first_page = region.start_addr().0 / PAGE_SIZE;
            let first_entry = region.as_ptr() as u64 / PAGE_SIZE;
            let pages = region.len() / PAGE_SIZE;
            let mut done = 0;
            while done < pages {
                let batch = (pages - done).min(BATCH as u64);
                let bytes = &mut buffer.0[..batch as usize * 8];
                self.file.read_exact_at(bytes, (first_entry + done) * 8)?;
                for (index, entry) in bytes.as_chunks::<8>().0.iter().enumerate() {
                    if is_changed(u64::from_le_bytes(*entry)) {
                        found(first_page + done + index as u64)?;
                    }
                }
                done += batch;
            }
        }
        Ok(())
    }

    /// The changed pages as extents.
    ///
    /// # Errors
    /// Reading the pagemap failed.
    pub fn changed(&self, ram: &GuestRam) -> io::Result<Vec<Extent>> {
        let mut builder = ExtentsBuilder::default();
        self.each_changed(ram, |page| builder.push(page))?;
        Ok(builder.finish())
    }
}

fn is_changed(entry: u64) -> bool {
    entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::layout::{HOLE_END, Layout};
    use crate::map;

    fn pagemap() -> Pagemap {
        Pagemap::open(File::open("/proc").unwrap().as_fd()).unwrap()
    }

    #[test]
    fn written_pages_are_changed_and_read_or_returned_ones_are_not() {
        let layout = Layout::with_hole(1 << 20, 512 << 10);
        let file = tempfile::tempfile().unwrap();
        file.set_len(layout.end()).unwrap();
        file.write_all_at(&[3; 8192], 0).unwrap();
        let ram = map::layered(&layout, file).unwrap();
        let far = HOLE_END / PAGE_SIZE;
        for page in [1, 5, far + 2] {
            ram.write_obj(9u8, GuestAddress(page * PAGE_SIZE)).unwrap();
        }
        let _: u8 = ram.read_obj(GuestAddress(0)).unwrap();
        let single = |first_page| Extent { first_page, pages: 1 };
        assert_eq!(pagemap().changed(&ram).unwrap(), [single(1), single(5), single(far + 2)]);

        let host = ram.find_region(GuestAddress(0)).unwrap().as_ptr() as u64 + PAGE_SIZE;
        // SAFETY: the page lies in the mapping of `ram`, to which no reference exists.
        let returned = unsafe { libc::madvise(host as *mut libc::c_void, 4096, libc::MADV_DONTNEED) };
        assert_eq!(returned, 0);
        assert_eq!(pagemap().changed(&ram).unwrap(), [single(5), single(far + 2)]);
        assert_eq!(ram.read_obj::<u8>(GuestAddress(PAGE_SIZE)).unwrap(), 3);
    }

    #[test]
    fn untouched_anonymous_ram_has_no_changes() {
        let ram = map::anonymous(&Layout::new(1 << 20)).unwrap();
        assert_eq!(pagemap().changed(&ram).unwrap(), []);
        ram.write_obj(1u8, GuestAddress(0)).unwrap();
        assert_eq!(pagemap().changed(&ram).unwrap().len(), 1);
    }
}
