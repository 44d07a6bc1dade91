//! Reading an extent table that nobody vouches for.
//!
//! ```text
//! 0  "FKDX"   4  version (1)   8  count   16  count x { first page, pages }      all little endian
//! ```

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::StoreError;

/// Unit of a layer.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a table before its entries.
pub(crate) const HEADER: u64 = 16;
/// Bytes of an entry.
pub(crate) const ENTRY: u64 = 16;

/// A run of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) first: u64,
    pub(crate) pages: u64,
}

impl Extent {
    pub(crate) fn end(self) -> u64 {
        self.first + self.pages
    }

    pub(crate) fn start_byte(self) -> u64 {
        self.first * PAGE
    }

    pub(crate) fn bytes(self) -> u64 {
        self.pages * PAGE
    }

    pub(crate) fn end_byte(self) -> u64 {
        self.start_byte() + self.bytes()
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.first.to_le_bytes());
        bytes[8..].copy_from_slice(&self.pages.to_le_bytes());
        bytes
    }
}

/// Adds pages that lie behind all that were added; those that follow the last extent become part of it.
pub(crate) fn append(extents: &mut Vec<Extent>, more: Extent) {
    match extents.last_mut() {
        Some(last) if last.end() == more.first => last.pages += more.pages,
        _ => extents.push(more),
    }
}

/// Reads the table in `file` for a layer of `layer_bytes`. Nothing larger than such a layer can need is
/// read, and what is returned is sorted, apart and inside the layer.
pub(crate) fn read(file: &File, path: &Path, layer_bytes: u64) -> Result<Vec<Extent>, StoreError> {
    let bad = |reason: String| StoreError::BadLayer { path: path.to_owned(), reason };
    let pages = layer_bytes / PAGE;
    // Extents do not touch, so there is a page between any two.
    let most = HEADER + (pages / 2 + 1) * ENTRY;
    let length = file.metadata().map_err(|e| StoreError::io("read", path, e))?.len();
    if length > most {
        return Err(bad(format!(
            "its extent table has {length} bytes; a layer of {pages} pages needs {most}"
        )));
    }
    let mut bytes = Vec::new();
    let mut from_start = file;
    std::io::Seek::rewind(&mut from_start)
        .and_then(|()| from_start.take(most).read_to_end(&mut bytes))
        .map_err(|e| StoreError::io("read", path, e))?;
    parse(&bytes, pages).map_err(bad)
}

/// A whole table.
pub(crate) fn to_bytes(extents: &[Extent]) -> Vec<u8> {
    let mut bytes = b"FKDX\x01\0\0\0".to_vec();
    bytes.extend_from_slice(&(extents.len() as u64).to_le_bytes());
    extents.iter().for_each(|extent| bytes.extend_from_slice(&extent.to_bytes()));
    bytes
}

/// The header, and nothing but what it announces.
pub(crate) fn parse(bytes: &[u8], pages: u64) -> Result<Vec<Extent>, String> {
    let (header, entries) = bytes.split_at_checked(16).ok_or("its extent table has no header")?;
    if &header[..4] != b"FKDX" {
        return Err("its extent table does not start with FKDX".to_owned());
    }
    let version = number::<4>(&header[4..8]);
    if version != 1 {
        return Err(format!("its extent table has version {version}; 1 is known"));
    }
    let count = number::<8>(&header[8..16]);
    if count.checked_mul(ENTRY) != Some(entries.len() as u64) {
        return Err(format!(
            "its extent table announces {count} extents and has {} bytes of them",
            entries.len()
        ));
    }
    let mut extents = Vec::with_capacity(entries.len() / 16);
    let mut free_from = 0;
    for entry in entries.chunks_exact(16) {
        let extent = Extent { first: number::<8>(&entry[..8]), pages: number::<8>(&entry[8..]) };
        let end = extent.first.checked_add(extent.pages).filter(|end| *end <= pages);
        match end {
            Some(end) if extent.pages > 0 && extent.first >= free_from => free_from = end + 1,
            Some(_) => return Err(format!("{extent:?} is empty, out of order, or touches the one before")),
            None => return Err(format!("{extent:?} lies beyond its {pages} pages")),
        }
        extents.push(extent);
    }
    Ok(extents)
}

/// A little-endian number of `N` bytes.
fn number<const N: usize>(bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[..N]);
    u64::from_le_bytes(wide)
}

/// A table as a monitor writes it, whatever it lists.
#[cfg(test)]
pub(crate) fn table(extents: &[(u64, u64)]) -> Vec<u8> {
    to_bytes(&extents.iter().map(|&(first, pages)| Extent { first, pages }).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_lie_are_refused() {
        let good = table(&[(0, 2), (3, 1), (9, 1)]);
        assert_eq!(parse(&good, 10).unwrap().len(), 3);
        assert!(parse(&table(&[]), 0).unwrap().is_empty());

        let bad: &[(&str, Vec<u8>)] = &[
            ("nothing", vec![]),
            ("magic", [b"FKDY", &good[4..]].concat()),
            ("version", [b"FKDX\x02", &good[5..]].concat()),
            ("cut", good[..good.len() - 1].to_vec()),
            ("more than announced", [&good[..], &[0; 16]].concat()),
            ("beyond the end", table(&[(9, 2)])),
            ("overflow", table(&[(u64::MAX, 2)])),
            ("empty", table(&[(1, 0)])),
            ("unsorted", table(&[(5, 1), (1, 1)])),
            ("overlap", table(&[(1, 3), (2, 3)])),
            ("touching", table(&[(1, 1), (2, 1)])),
            ("huge count", [&good[..8], &u64::MAX.to_le_bytes(), &good[16..]].concat()),
        ];
        for (what, bytes) in bad {
            assert!(parse(bytes, 10).is_err(), "{what}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_error_or_sound_extents(
            mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
            headed in proptest::bool::ANY,
        ) {
            if headed && bytes.len() >= 16 {
                let count = (bytes.len() - 16) as u64 / 16;
                bytes.truncate(16 + count as usize * 16);
                bytes[..8].copy_from_slice(b"FKDX\x01\0\0\0");
                bytes[8..16].copy_from_slice(&count.to_le_bytes());
            }
            if let Ok(extents) = parse(&bytes, 1000) {
                for pair in extents.windows(2) {
                    assert!(pair[0].end_byte() < pair[1].start_byte());
                }
                assert!(extents.iter().all(|e| e.end_byte() <= 1000 * PAGE));
            }
        }
    }
}
