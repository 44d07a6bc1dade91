//! Writing one layer page by page, hashing on the way.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::disk;
use crate::error::StoreError;
use crate::extents::{Extent, PAGE, header};
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
        let page = PAGE as usize;
        let mut pending = 0..0;
        for at in (0..bytes.len()).step_by(page) {
            if is_zero(&bytes[at..at + page]) {
                continue;
            }
            if pending.end != at {
                self.store(first, bytes, &pending)?;
                pending = at..at;
            }
            pending.end += page;
        }
        self.store(first, bytes, &pending)?;
        self.hasher.data(bytes);
        let pages = (bytes.len() / page) as u64;
        match self.runs.last_mut() {
            Some(last) if last.end() == first => last.pages += pages,
            _ if pages > 0 => self.runs.push(Extent { first, pages }),
            _ => {}
        }
        Ok(())
    }

    fn store(&self, first: u64, bytes: &[u8], range: &std::ops::Range<usize>) -> Result<(), StoreError> {
        self.file
            .write_all_at(&bytes[range.clone()], first * PAGE + range.start as u64)
            .map_err(|e| StoreError::io("write", &self.data, e))
    }

    /// Writes the table; the layer is `size` bytes long.
    pub(crate) fn finish(mut self, size: u64) -> Result<LayerRef, StoreError> {
        self.file.set_len(size).map_err(|e| StoreError::io("grow", &self.data, e))?;
        let mut table = header(self.runs.len() as u64).to_vec();
        for run in &self.runs {
            self.hasher.extent(*run);
            table.extend_from_slice(&run.to_bytes());
        }
        disk::create_new(&self.table)?
            .write_all(&table)
            .map_err(|e| StoreError::io("write", &self.table, e))?;
        Ok(LayerRef {
            hash: self.hasher.finish(size),
            size_bytes: size,
            data_bytes: self.runs.iter().map(|run| run.bytes()).sum(),
            extents: self.runs.len() as u64,
        })
    }
}
