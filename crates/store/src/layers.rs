//! Layers: what they hash to, and whether a file really is one.
//!
//! One rule names memory layers, disk layers and images: BLAKE3 over the length of the file, the BLAKE3 of
//! its extents and the BLAKE3 of the data that they list. It can be computed while the data streams by,
//! and costs nothing for holes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::disk;
use crate::error::StoreError;
use crate::extents::{self, Extent, PAGE};
use crate::manifest::LayerRef;

const BUFFER: usize = 1 << 20;
/// From this many bytes on all processors hash.
const HASHED_AT_ONCE: usize = 128 << 10;
static ZEROES: [u8; BUFFER] = [0; BUFFER];

/// Whether a buffer (of at most 1 MiB) holds nothing but zero bytes.
pub(crate) fn is_zero(buffer: &[u8]) -> bool {
    buffer == &ZEROES[..buffer.len()]
}

/// Computes the name of a layer. Extents and data are added in order.
#[derive(Debug, Default)]
pub(crate) struct LayerHasher {
    extents: blake3::Hasher,
    data: blake3::Hasher,
}

impl LayerHasher {
    pub(crate) fn extent(&mut self, extent: Extent) {
        self.extents.update(&extent.to_bytes());
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        // Threads cost more than they bring for little.
        match data.len() {
            0..HASHED_AT_ONCE => self.data.update(data),
            _ => self.data.update_rayon(data),
        };
    }

    pub(crate) fn finish(self, layer_bytes: u64) -> String {
        let mut whole = blake3::Hasher::new();
        whole.update(b"forkd layer 1\n").update(&layer_bytes.to_le_bytes());
        whole.update(self.extents.finalize().as_bytes()).update(self.data.finalize().as_bytes());
        whole.finalize().to_hex().to_string()
    }
}

/// What a layer may be at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerBounds {
    /// Length of the sparse file.
    pub(crate) file_bytes: u64,
    /// Sum of its extents.
    pub(crate) data_bytes: u64,
}

/// Reads a layer, checks that it is one and hashes it. Data outside of the extents is refused: it would be
/// mapped into guests without being part of the hash.
pub(crate) fn examine(data: &Path, table: &Path, bounds: LayerBounds) -> Result<LayerRef, StoreError> {
    let layer = Opened::check(data, table, bounds)?;
    let mut hasher = LayerHasher::default();
    layer.extents.iter().for_each(|extent| hasher.extent(*extent));
    layer.each_run(|_, bytes| {
        hasher.data(bytes);
        Ok(())
    })?;
    let (size_bytes, data_bytes) = (layer.size, layer.data_bytes());
    Ok(LayerRef {
        hash: hasher.finish(size_bytes),
        size_bytes,
        data_bytes,
        extents: layer.extents.len() as u64,
    })
}

/// Checks a layer as [`examine`] does and hands out its pages in order, a run from `first` on at a time. Returns
/// how long its file is.
pub(crate) fn each_page_run(
    data: &Path,
    table: &Path,
    bounds: LayerBounds,
    run: impl FnMut(u64, &[u8]) -> Result<(), StoreError>,
) -> Result<u64, StoreError> {
    let layer = Opened::check(data, table, bounds)?;
    layer.each_run(run)?;
    Ok(layer.size)
}

/// A layer whose size and table keep their bounds.
struct Opened<'a> {
    path: &'a Path,
    file: File,
    size: u64,
    extents: Vec<Extent>,
}

impl<'a> Opened<'a> {
    fn check(data: &'a Path, table: &Path, bounds: LayerBounds) -> Result<Self, StoreError> {
        let bad = |reason: String| StoreError::BadLayer { path: data.to_owned(), reason };
        let file = disk::open(data)?;
        let metadata = file.metadata().map_err(|e| StoreError::io("read", data, e))?;
        let size = metadata.len();
        if !metadata.is_file() || size % PAGE != 0 || size > bounds.file_bytes {
            let allowed = bounds.file_bytes / PAGE;
            return Err(bad(format!("it has {size} bytes; {allowed} whole pages are allowed")));
        }
        let extents = extents::read(&disk::open(table)?, table, size)?;
        let opened = Self { path: data, file, size, extents };
        let data_bytes = opened.data_bytes();
        if data_bytes > bounds.data_bytes {
            let allowed = bounds.data_bytes;
            return Err(bad(format!("its extents list {data_bytes} bytes; {allowed} are allowed")));
        }
        Ok(opened)
    }

    fn data_bytes(&self) -> u64 {
        self.extents.iter().map(|e| e.bytes()).sum()
    }

    fn each_run(&self, mut run: impl FnMut(u64, &[u8]) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let mut buffer = vec![0; BUFFER];
        let mut from = 0;
        for extent in &self.extents {
            check_hole(&self.file, self.path, (from, extent.start_byte()), &mut buffer)?;
            let mut first = extent.first;
            each_piece(
                &self.file,
                self.path,
                (extent.start_byte(), extent.end_byte()),
                &mut buffer,
                |piece| {
                    run(first, piece)?;
                    first += piece.len() as u64 / PAGE;
                    Ok(())
                },
            )?;
            from = extent.end_byte();
        }
        check_hole(&self.file, self.path, (from, self.size), &mut buffer)
    }
}

/// The name of an image: the runs of its blocks that are not zero are its extents.
pub(crate) fn hash_image(path: &Path) -> Result<String, StoreError> {
    let mut runs = RunHasher::default();
    let size = each_block(&disk::open(path)?, path, |index, block| {
        runs.block(index, block);
    })?;
    Ok(runs.finish(size))
}

/// The extents of an image: the runs of its blocks that are not zero.
pub(crate) fn image_runs(file: &File, path: &Path) -> Result<Vec<Extent>, StoreError> {
    let mut runs = Vec::new();
    each_block(file, path, |first, block| {
        if !is_zero(block) {
            extents::append(&mut runs, Extent { first, pages: 1 });
        }
    })?;
    Ok(runs)
}

/// Hands out the blocks of an image that do not lie in holes, and returns its size. Holes read as zero; skipping them
/// is only faster.
fn each_block(file: &File, path: &Path, mut block: impl FnMut(u64, &[u8])) -> Result<u64, StoreError> {
    let size = file.metadata().map_err(|e| StoreError::io("read", path, e))?.len();
    let mut buffer = vec![0; BUFFER];
    let mut at = 0;
    while let Some((start, end)) = next_data(file, path, at, size)? {
        let (start, end) = (start / PAGE * PAGE, end.next_multiple_of(PAGE).min(size));
        let mut index = start / PAGE;
        each_piece(file, path, (start, end), &mut buffer, |piece| {
            for bytes in piece.chunks(PAGE as usize) {
                block(index, bytes);
                index += 1;
            }
            Ok(())
        })?;
        at = end;
    }
    Ok(size)
}

/// Hashes blocks as an image's: zero blocks are left out, the others gathered into extents.
#[derive(Debug, Default)]
pub(crate) struct RunHasher {
    hasher: LayerHasher,
    run: Option<Extent>,
}

impl RunHasher {
    /// Adds one block; indexes must grow. Returns whether it has to be stored.
    pub(crate) fn block(&mut self, index: u64, bytes: &[u8]) -> bool {
        if is_zero(bytes) {
            return false;
        }
        self.hasher.data(bytes);
        match &mut self.run {
            Some(run) if run.first + run.pages == index => run.pages += 1,
            run => {
                if let Some(done) = run.replace(Extent { first: index, pages: 1 }) {
                    self.hasher.extent(done);
                }
            }
        }
        true
    }

    pub(crate) fn finish(mut self, size: u64) -> String {
        if let Some(run) = self.run {
            self.hasher.extent(run);
        }
        self.hasher.finish(size)
    }
}

/// Refuses anything but zeroes in `range`. File systems with large blocks may store zeroes there.
fn check_hole(file: &File, path: &Path, range: (u64, u64), buffer: &mut [u8]) -> Result<(), StoreError> {
    let (mut at, end) = range;
    while let Some(data) = next_data(file, path, at, end)? {
        each_piece(file, path, data, buffer, |piece| {
            if is_zero(piece) {
                return Ok(());
            }
            let reason = format!("it has data between {at} and {end} that no extent lists");
            Err(StoreError::BadLayer { path: path.to_owned(), reason })
        })?;
        at = data.1;
    }
    Ok(())
}

/// The next stretch of `file` in `at..end` that is not a hole.
fn next_data(file: &File, path: &Path, at: u64, end: u64) -> Result<Option<(u64, u64)>, StoreError> {
    if at >= end {
        return Ok(None);
    }
    let failed = |e: Errno| StoreError::io("read", path, e);
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start < end => start,
        Ok(_) | Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let stop = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(failed)?;
    Ok(Some((start, stop.min(end))))
}

/// Reads `range` in pieces of at most the buffer's length, aligned like its start.
fn each_piece(
    file: &File,
    path: &Path,
    range: (u64, u64),
    buffer: &mut [u8],
    mut piece: impl FnMut(&[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let (mut at, end) = range;
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(usize::MAX).min(buffer.len());
        let part = &mut buffer[..length];
        file.read_exact_at(part, at).map_err(|e| StoreError::io("read", path, e))?;
        piece(part)?;
        at += length as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::table;
    use std::path::PathBuf;

    const BOUNDS: LayerBounds = LayerBounds { file_bytes: 64 * PAGE, data_bytes: 8 * PAGE };

    struct Layer {
        _folder: tempfile::TempDir,
        data: PathBuf,
        table: PathBuf,
    }

    fn layer(pages: u64, extents: &[(u64, u64)], filled: &[u64]) -> Layer {
        let folder = tempfile::tempdir().unwrap();
        let (data, table_path) = (folder.path().join("data"), folder.path().join("extents"));
        let file = File::create(&data).unwrap();
        file.set_len(pages * PAGE).unwrap();
        for page in filled {
            file.write_all_at(&[*page as u8 + 1; PAGE as usize], page * PAGE).unwrap();
        }
        std::fs::write(&table_path, table(extents)).unwrap();
        Layer { _folder: folder, data, table: table_path }
    }

    impl Layer {
        fn examine(&self) -> Result<LayerRef, StoreError> {
            examine(&self.data, &self.table, BOUNDS)
        }
    }

    #[test]
    fn equal_layers_have_equal_names_and_every_difference_shows() {
        let base = layer(10, &[(1, 1), (4, 2)], &[1, 4, 5]).examine().unwrap();
        assert_eq!((base.data_bytes, base.extents, base.size_bytes), (3 * PAGE, 2, 10 * PAGE));
        assert_eq!(layer(10, &[(1, 1), (4, 2)], &[1, 4, 5]).examine().unwrap(), base);
        for other in [
            layer(11, &[(1, 1), (4, 2)], &[1, 4, 5]),
            layer(10, &[(1, 1), (4, 2)], &[1, 4]),
            layer(10, &[(1, 2), (4, 2)], &[1, 4, 5]),
            layer(10, &[(4, 2)], &[4, 5]),
        ] {
            assert_ne!(other.examine().unwrap().hash, base.hash);
        }
    }

    #[test]
    fn what_is_outside_the_bounds_is_refused() {
        for (what, bad) in [
            ("file too long", layer(65, &[], &[])),
            ("too much data", layer(64, &[(0, 9)], &[])),
            ("extent beyond the file", layer(4, &[(3, 2)], &[])),
            ("data that no extent lists", layer(10, &[(1, 1)], &[1, 5])),
            ("data before the first extent", layer(10, &[(5, 1)], &[0, 5])),
        ] {
            assert!(matches!(bad.examine(), Err(StoreError::BadLayer { .. })), "{what}");
        }
        let odd = layer(4, &[], &[]);
        File::options().write(true).open(&odd.data).unwrap().set_len(4 * PAGE + 1).unwrap();
        assert!(odd.examine().is_err());
    }

    #[test]
    fn an_image_is_named_alike_with_and_without_holes() {
        let sparse = layer(600, &[], &[0, 1, 300, 599]);
        let full = layer(600, &[], &[]);
        std::fs::write(&full.data, std::fs::read(&sparse.data).unwrap()).unwrap();
        assert_eq!(hash_image(&sparse.data).unwrap(), hash_image(&full.data).unwrap());
        let image = examine(
            &sparse.data,
            &layer(600, &[(0, 2), (300, 1), (599, 1)], &[]).table,
            LayerBounds { file_bytes: 600 * PAGE, data_bytes: 600 * PAGE },
        );
        assert_eq!(image.unwrap().hash, hash_image(&sparse.data).unwrap());
    }
}
