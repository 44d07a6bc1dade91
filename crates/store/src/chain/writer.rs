//! Making one layer page by page, hashing on the way.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{NewLayer, page_runs};
use crate::disk;
use crate::error::StoreError;
use crate::extents::{self, Extent, PAGE, append};
use crate::layers::{LayerHasher, is_zero};
use crate::manifest::LayerRef;

/// A layer that grows towards higher addresses. Pages of zeroes are listed, and cost nothing.
#[derive(Debug)]
pub(crate) struct LayerWriter {
    file: File,
    /// The file has its pages already: what is not kept is taken away.
    in_place: bool,
    data: PathBuf,
    table: PathBuf,
    hasher: LayerHasher,
    runs: Vec<Extent>,
}

impl LayerWriter {
    /// Begins a layer in two new files.
    pub(crate) fn create(data: &Path, table: &Path) -> Result<Self, StoreError> {
        Ok(Self::new(disk::create_new(data)?, false, data, table))
    }

    /// Makes a layer of a file that holds its pages already; the table is new. Every page that the file holds is to be
    /// given to [`LayerWriter::pages`], as it is there, or to [`LayerWriter::leave_out`].
    pub(crate) fn over(data: &Path, table: &Path) -> Result<Self, StoreError> {
        let file = File::options().write(true).open(data).map_err(|e| StoreError::io("open", data, e))?;
        Ok(Self::new(file, true, data, table))
    }

    fn new(file: File, in_place: bool, data: &Path, table: &Path) -> Self {
        let (data, table) = (data.to_owned(), table.to_owned());
        Self { file, in_place, data, table, hasher: LayerHasher::default(), runs: Vec::new() }
    }

    /// Adds whole pages from `first` on, which lies behind all that was added.
    pub(crate) fn pages(&mut self, first: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let at = |range: &std::ops::Range<usize>| first * PAGE + range.start as u64;
        // In place, those with content are there and those without may be; elsewhere it is the other way round.
        let in_place = self.in_place;
        for range in page_runs(bytes.chunks(PAGE as usize).map(|page| is_zero(page) == in_place)) {
            if in_place {
                self.punch(at(&range), range.len() as u64)?;
                continue;
            }
            let at = at(&range);
            self.file.write_all_at(&bytes[range], at).map_err(|e| StoreError::io("write", &self.data, e))?;
        }
        self.hasher.data(bytes);
        let pages = bytes.len() as u64 / PAGE;
        if pages > 0 {
            append(&mut self.runs, Extent { first, pages });
        }
        Ok(())
    }

    /// Passes over `length` bytes from page `first` on.
    pub(crate) fn leave_out(&mut self, first: u64, length: u64) -> Result<(), StoreError> {
        if self.in_place { self.punch(first * PAGE, length) } else { Ok(()) }
    }

    fn punch(&self, at: u64, length: u64) -> Result<(), StoreError> {
        disk::punch(&self.file, at, length).map_err(|e| StoreError::io("write", &self.data, e))
    }

    /// Writes the table; the layer is `size` bytes long.
    pub(crate) fn finish(mut self, size: u64) -> Result<NewLayer, StoreError> {
        self.file.set_len(size).map_err(|e| StoreError::io("grow", &self.data, e))?;
        self.runs.iter().for_each(|run| self.hasher.extent(*run));
        disk::create_new(&self.table)?
            .write_all(&extents::to_bytes(&self.runs))
            .map_err(|e| StoreError::io("write", &self.table, e))?;
        let layer = LayerRef {
            hash: self.hasher.finish(size),
            size_bytes: size,
            data_bytes: self.runs.iter().map(|run| run.bytes()).sum(),
            extents: self.runs.len() as u64,
        };
        Ok(NewLayer { layer, data: self.data, table: self.table })
    }
}
