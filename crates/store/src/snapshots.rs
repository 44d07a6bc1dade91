//! Making snapshots: a draft that a monitor writes into, then publishing.

use std::fs::File;
use std::path::Path;

use forkd_protocol::names::Tag;

use crate::error::StoreError;
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::store::Store;

impl Store {
    /// All published snapshots, by tag.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRecord>, StoreError> {
        todo!()
    }

    /// One published snapshot.
    pub fn snapshot(&self, tag: &Tag) -> Result<SnapshotRecord, StoreError> {
        let _ = tag;
        todo!()
    }

    /// Reserves `tag` and opens the files that a monitor writes. A second caller gets
    /// [`StoreError::TagTaken`], also while the first has not published yet.
    pub fn begin_snapshot(&self, tag: &Tag) -> Result<SnapshotDraft, StoreError> {
        let _ = tag;
        todo!()
    }

    /// Removes a snapshot. Children that run keep what they have open.
    pub fn remove_snapshot(&self, tag: &Tag) -> Result<(), StoreError> {
        let _ = tag;
        todo!()
    }
}

/// The files that a monitor writes a snapshot into, open for reading and writing.
#[derive(Debug)]
pub struct DraftFiles {
    /// Machine state.
    pub state: File,
    /// Memory layer.
    pub memory: File,
    /// Extent table of the memory layer.
    pub memory_extents: File,
    /// Extent table of the frozen top of disk 0.
    pub disk_extents: File,
}

/// A snapshot being made. Dropping it removes its files and frees the tag.
#[derive(Debug)]
pub struct SnapshotDraft {
    files: DraftFiles,
}

impl SnapshotDraft {
    /// The files for the monitor.
    pub fn outputs(&mut self) -> &DraftFiles {
        &self.files
    }

    /// Moves the frozen top of disk 0 in; `path` must lie in the store.
    pub fn adopt_disk_top(&mut self, path: &Path) -> Result<(), StoreError> {
        let _ = path;
        todo!()
    }

    /// Checks and hashes everything and makes the snapshot visible under its tag.
    pub fn publish(self, meta: SnapshotMeta) -> Result<SnapshotRecord, StoreError> {
        let _ = meta;
        todo!()
    }
}
