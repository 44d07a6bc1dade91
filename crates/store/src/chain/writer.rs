//! Writing one layer page by page, hashing on the way.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::page_runs;
use crate::disk;
use crate::error::StoreError;
use crate::extents::{self, Extent, PAGE, append};
use crate::layers::{LayerHasher, is_zero};
use crate::manifest::LayerRef;

/// A layer that grows towards higher addresses. Pages of zeroes are listed, and cost nothing.
#[derive(Debug)]
pub(crate) struct LayerWriter {
    file: File,
    data: PathBuf,
    table: PathBuf,
    hasher: LayerHasher,
    runs: Vec<Extent>,
}

impl LayerWriter {
    /// Begins a layer in two new files.
    pub(crate) fn create(data: &Path, table: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            file: disk::create_new(data)?,
            data: data.to_owned(),
            table: table.to_owned(),
            hasher: LayerHasher::default(),
            runs: Vec::new(),
        })
    }

    /// Adds whole pages from `first` on, which lies behind all that was added.
    pub(crate) fn pages(&mut self, first: u64, bytes: &[u8]) -> Result<(), StoreError> {
        for range in page_runs(bytes.chunks(PAGE as usize).map(|page| !is_zero(page))) {
            let at = first * PAGE + range.start as u64;
            self.file.write_all_at(&bytes[range], at).map_err(|e| StoreError::io("write", &self.data, e))?;
        }
        self.hasher.data(bytes);
        let pages = bytes.len() as u64 / PAGE;
        if pages > 0 {
            append(&mut self.runs, Extent { first, pages });
        }
        Ok(())
    }

    /// Writes the table; the layer is `size` bytes long.
    pub(crate) fn finish(mut self, size: u64) -> Result<LayerRef, StoreError> {
        self.file.set_len(size).map_err(|e| StoreError::io("grow", &self.data, e))?;
        self.runs.iter().for_each(|run| self.hasher.extent(*run));
        disk::create_new(&self.table)?
            .write_all(&extents::to_bytes(&self.runs))
            .map_err(|e| StoreError::io("write", &self.table, e))?;
        Ok(LayerRef {
            hash: self.hasher.finish(size),
            size_bytes: size,
            data_bytes: self.runs.iter().map(|run| run.bytes()).sum(),
            extents: self.runs.len() as u64,
        })
    }
}
