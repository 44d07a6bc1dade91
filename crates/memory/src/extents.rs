//! The extent table: which pages of the address space a layer holds.
//!
//! Little endian: magic `FKDX`, `u32` version 1, `u64` count, then count times (`u64` first page, `u64`
//! pages); sorted, neither overlapping nor touching. See docs/snapshot-format.md.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use crate::PAGE_SIZE;

/// First bytes of a table.
pub const MAGIC: [u8; 4] = *b"FKDX";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Most extents a table may have: every other page of 64 GiB.
pub const MAX_EXTENTS: u64 = 1 << 23;

/// A run of pages (or disk blocks of the same size).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Number of the first page.
    pub first_page: u64,
    /// How many; never 0.
    pub pages: u64,
}

/// How a table of `count` extents begins.
pub(crate) fn header(count: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..].copy_from_slice(&count.to_le_bytes());
    bytes
}

impl Extent {
    /// Its entry in a table.
    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.first_page.to_le_bytes());
        bytes[8..].copy_from_slice(&self.pages.to_le_bytes());
        bytes
    }

    /// Number of the first page after it.
    pub fn end(&self) -> u64 {
        self.first_page.saturating_add(self.pages)
    }
}

/// A table that was refused.
#[derive(Debug, thiserror::Error)]
pub enum ExtentsError {
    /// Reading or writing failed, or the table is cut short.
    #[error("the extent table could not be read or written whole")]
    Io(#[from] std::io::Error),
    /// Not an extent table, or of another version.
    #[error("this is not an extent table of version {VERSION}")]
    Foreign,
    /// More extents than [`MAX_EXTENTS`].
    #[error("the extent table claims {0} extents; at most {MAX_EXTENTS} are possible")]
    TooMany(u64),
    /// Empty, unsorted, touching, overlapping, or past the end.
    #[error("entry {0} of the extent table is empty, out of order or past the end of the address space")]
    Misplaced(u64),
}

/// Reads a whole table and checks it against an address space of `limit` pages.
///
/// # Errors
/// Whatever is not a well-formed table is refused, before memory for it is reserved.
pub fn read_table(from: &mut impl Read, limit: u64) -> Result<Vec<Extent>, ExtentsError> {
    let mut header = [0u8; 16];
    from.read_exact(&mut header)?;
    let [m0, m1, m2, m3, v0, v1, v2, v3, count @ ..] = header;
    if [m0, m1, m2, m3] != MAGIC || u32::from_le_bytes([v0, v1, v2, v3]) != VERSION {
        return Err(ExtentsError::Foreign);
    }
    let count = u64::from_le_bytes(count);
    if count > MAX_EXTENTS {
        return Err(ExtentsError::TooMany(count));
    }
    let mut table = Vec::new();
    let mut free_from = 0;
    for index in 0..count {
        let (mut first, mut pages) = ([0u8; 8], [0u8; 8]);
        from.read_exact(&mut first)?;
        from.read_exact(&mut pages)?;
        let extent = Extent { first_page: u64::from_le_bytes(first), pages: u64::from_le_bytes(pages) };
        let end = extent.first_page.checked_add(extent.pages).filter(|end| *end <= limit);
        let touches = index > 0 && extent.first_page <= free_from;
        match end {
            Some(end) if extent.pages > 0 && !touches => free_from = end,
            _ => return Err(ExtentsError::Misplaced(index)),
        }
        table.push(extent);
    }
    Ok(table)
}

/// Writes a table.
///
/// # Errors
/// Those of the writer.
pub fn write_table(table: &[Extent], to: &mut impl Write) -> Result<(), ExtentsError> {
    let mut bytes = Vec::with_capacity(16 + table.len() * 16);
    bytes.extend_from_slice(&header(table.len() as u64));
    table.iter().for_each(|extent| bytes.extend_from_slice(&extent.to_bytes()));
    to.write_all(&bytes)?;
    Ok(())
}

/// The pages of a sparse layer file that hold data, as its file system tells (never too few).
///
/// # Errors
/// The file cannot be examined.
pub fn data_extents(file: &File) -> std::io::Result<Vec<Extent>> {
    let mut table: Vec<Extent> = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = next_data(file, at)? {
        let (first, end_page) = (start / PAGE_SIZE, end.div_ceil(PAGE_SIZE));
        match table.last_mut() {
            Some(last) if last.end() >= first => last.pages = end_page - last.first_page,
            _ => table.push(Extent { first_page: first, pages: end_page - first }),
        }
        at = end;
    }
    Ok(table)
}

/// The next run of data at or after `from`.
fn next_data(file: &File, from: u64) -> std::io::Result<Option<(u64, u64)>> {
    let seek = |offset: u64, whence| {
        let offset = libc::off_t::try_from(offset).map_err(|_| std::io::ErrorKind::InvalidInput)?;
        // SAFETY: lseek only moves the position of a descriptor that is open for the call.
        let found = unsafe { libc::lseek(file.as_raw_fd(), offset, whence) };
        u64::try_from(found).map_err(|_| std::io::Error::last_os_error())
    };
    match seek(from, libc::SEEK_DATA) {
        Ok(start) => Ok(Some((start, seek(start, libc::SEEK_HOLE)?))),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Collects pages, in ascending order, into extents.
#[derive(Debug, Default)]
pub struct ExtentsBuilder {
    table: Vec<Extent>,
    pages: u64,
}

impl ExtentsBuilder {
    /// Adds one page; it must lie after all earlier ones.
    pub fn push(&mut self, page: u64) {
        self.pages += 1;
        match self.table.last_mut() {
            Some(last) if last.end() == page => last.pages += 1,
            _ => self.table.push(Extent { first_page: page, pages: 1 }),
        }
    }

    /// Number of pages added.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The finished table.
    pub fn finish(self) -> Vec<Extent> {
        self.table
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(table: &[Extent]) -> Vec<u8> {
        let mut out = Vec::new();
        write_table(table, &mut out).unwrap();
        out
    }

    #[test]
    fn malformed_tables_are_refused() {
        let e = |first_page, pages| Extent { first_page, pages };
        for (name, bad) in [
            ("empty extent", vec![e(1, 0)]),
            ("touching", vec![e(1, 2), e(3, 1)]),
            ("overlapping", vec![e(1, 3), e(2, 5)]),
            ("unsorted", vec![e(9, 1), e(2, 1)]),
            ("past the end", vec![e(99, 2)]),
            ("overflowing", vec![e(u64::MAX, 2)]),
        ] {
            assert!(read_table(&mut bytes(&bad).as_slice(), 100).is_err(), "{name}");
        }
        let mut lying = bytes(&[e(1, 1)]);
        lying[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(read_table(&mut lying.as_slice(), 100), Err(ExtentsError::TooMany(_))));
        assert!(matches!(
            read_table(&mut &b"FKDX\x02\0\0\0\0\0\0\0\0\0\0\0"[..], 9),
            Err(ExtentsError::Foreign)
        ));
        assert!(read_table(&mut &b"FKD"[..], 9).is_err());
    }

    #[test]
    fn the_data_of_a_sparse_file_is_found_whole() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(data_extents(&file).unwrap(), []);
        for page in [0u64, 100, 101, 255] {
            file.write_all_at(&[1; 4096], page * PAGE_SIZE).unwrap();
        }
        let found: Vec<u64> =
            data_extents(&file).unwrap().iter().flat_map(|e| e.first_page..e.end()).collect();
        assert!([0, 100, 101, 255].iter().all(|page| found.contains(page)), "{found:?}");
    }

    proptest! {
        #[test]
        fn pages_survive_the_table(pages in proptest::collection::btree_set(0u64..5000, 0..400)) {
            let mut builder = ExtentsBuilder::default();
            pages.iter().for_each(|p| builder.push(*p));
            prop_assert_eq!(builder.pages(), pages.len() as u64);
            let read = read_table(&mut bytes(&builder.finish()).as_slice(), 5000).unwrap();
            let back: Vec<u64> = read.iter().flat_map(|e| e.first_page..e.end()).collect();
            prop_assert_eq!(back, pages.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_read_or_refused(noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read_table(&mut noise.as_slice(), 1 << 20);
        }
    }
}
