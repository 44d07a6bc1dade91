//! Writing changed pages out as a layer, in one pass and without allocating.
//!
//! So that it can be done by a copy of the process that `fork(2)` made: there, only the thread that forked exists, and
//! whatever lock another thread held stays held for ever.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::GuestRam;
use crate::changed::{Pagemap, PagemapBuffer};
use crate::dump::{Run, host_page, is_zero};
use crate::extents::{Extent, header};

const HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: usize = 16;
/// Entries of the table that are written at a time (4 KiB).
const ENTRIES: usize = 256;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Written {
    /// Entries of the extent table.
    pub extents: u64,
    /// Pages that they list, those that are zero now among them.
    pub pages: u64,
}

/// What [`write_changed`] needs of memory, made beforehand.
#[derive(Debug)]
pub struct Scratch {
    pagemap: PagemapBuffer,
    entries: Box<[u8; ENTRIES * ENTRY_BYTES]>,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { pagemap: PagemapBuffer::default(), entries: Box::new([0; ENTRIES * ENTRY_BYTES]) }
    }
}

/// Writes every page that was changed against the layers below into `data` (sparse, offset = guest-physical address)
/// and lists it in `table`. A page that is zero now is listed and not stored: it may not be zero below. Nobody may
/// write to `ram` meanwhile.
///
/// # Errors
/// The pagemap cannot be read, or writing failed, for instance because the disk is full.
pub fn write_changed(
    ram: &GuestRam,
    pagemap: &Pagemap,
    (data, table): (&File, &File),
    scratch: &mut Scratch,
) -> io::Result<Written> {
    data.set_len(crate::dump::end_of(ram))?;
    let Scratch { pagemap: buffer, entries } = scratch;
    let mut list = Table { file: table, entries, waiting: 0, open: None, written: Written::default() };
    let mut run = Run::default();
    pagemap.each_changed_with(ram, buffer, |page| {
        list.push(page)?;
        let host = host_page(ram, page)?;
        if !is_zero(host) && !run.extend(page, host) {
            run.flush(data)?;
            run.extend(page, host);
        }
        Ok(())
    })?;
    run.flush(data)?;
    list.finish()
}

/// An extent table that is written while it grows.
struct Table<'a> {
    file: &'a File,
    entries: &'a mut [u8; ENTRIES * ENTRY_BYTES],
    /// Bytes in `entries` that wait to be written.
    waiting: usize,
    open: Option<Extent>,
    written: Written,
}

impl Table<'_> {
    fn push(&mut self, page: u64) -> io::Result<()> {
        self.written.pages += 1;
        match &mut self.open {
            Some(open) if open.end() == page => open.pages += 1,
            open => {
                if let Some(done) = open.replace(Extent { first_page: page, pages: 1 }) {
                    self.add(done)?;
                }
            }
        }
        Ok(())
    }

    fn add(&mut self, extent: Extent) -> io::Result<()> {
        self.entries[self.waiting..self.waiting + ENTRY_BYTES].copy_from_slice(&extent.to_bytes());
        self.waiting += ENTRY_BYTES;
        self.written.extents += 1;
        if self.waiting == self.entries.len() { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let end = HEADER_BYTES + self.written.extents * ENTRY_BYTES as u64;
        self.file.write_all_at(&self.entries[..self.waiting], end - self.waiting as u64)?;
        self.waiting = 0;
        Ok(())
    }

    /// The header comes last: without it nobody takes the file for a table.
    fn finish(mut self) -> io::Result<Written> {
        if let Some(last) = self.open.take() {
            self.add(last)?;
        }
        self.flush()?;
        self.file.write_all_at(&header(self.written.extents), 0)?;
        Ok(self.written)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Seek;
    use std::os::fd::AsFd;

    use proptest::prelude::*;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::extents::read_table;
    use crate::layout::{HOLE_END, Layout};
    use crate::{PAGE_SIZE, dump, map};

    const HOLE: u64 = 2 << 20;
    const PAGES: u64 = 1024;

    fn page_number(index: u64) -> u64 {
        let low = HOLE / PAGE_SIZE;
        if index < low { index } else { HOLE_END / PAGE_SIZE + index - low }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn what_was_changed_over_a_layer_gives_the_memory_back(
            below in proptest::collection::btree_map(0..PAGES, 1u8..4, 0..60),
            changed in proptest::collection::btree_map(0..PAGES, 0u8..4, 0..700),
        ) {
            let layout = Layout::with_hole(PAGES * PAGE_SIZE, HOLE);
            let fill = |ram: &GuestRam, index: u64, value: u8| {
                ram.write_slice(&[value; 4096], GuestAddress(page_number(index) * PAGE_SIZE)).unwrap();
            };
            let parent = map::anonymous(&layout).unwrap();
            below.iter().for_each(|(index, value)| fill(&parent, *index, *value));
            let base = tempfile::tempfile().unwrap();
            dump::write_all(&parent, File::open("/proc").unwrap().as_fd(), &[], &base).unwrap();

            let source = map::layered(&layout, base.try_clone().unwrap()).unwrap();
            changed.iter().for_each(|(index, value)| fill(&source, *index, *value));
            let (data, mut table) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
            let pagemap = Pagemap::open(File::open("/proc").unwrap().as_fd()).unwrap();
            let written = write_changed(&source, &pagemap, (&data, &table), &mut Scratch::default()).unwrap();

            table.rewind().unwrap();
            let extents = read_table(&mut table, layout.end() / PAGE_SIZE).unwrap();
            let listed: Vec<u64> = extents.iter().flat_map(|e| e.first_page..e.end()).collect();
            let expected: Vec<u64> = changed.keys().map(|index| page_number(*index)).collect();
            prop_assert_eq!(&listed, &expected);
            prop_assert_eq!(written, Written { extents: extents.len() as u64, pages: listed.len() as u64 });

            let child = map::layered(&layout, base).unwrap();
            map::overlay(&child, &data, &extents).unwrap();
            for index in 0..PAGES {
                let value = changed.get(&index).or(below.get(&index)).copied().unwrap_or(0);
                let mut page = [0u8; 4096];
                child.read_slice(&mut page, GuestAddress(page_number(index) * PAGE_SIZE)).unwrap();
                prop_assert!(page.iter().all(|b| *b == value), "page {}", index);
            }
        }
    }
}
