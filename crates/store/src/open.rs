//! Snapshots whose files are open, ready to be passed to monitors.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forkd_protocol::control::FdRole;
use forkd_protocol::names::Tag;

use crate::error::StoreError;
use crate::records::SnapshotRecord;
use crate::store::Store;

/// A snapshot with its files open read-only. Whoever holds one can fork from it, whatever happens to the
/// tag or the files' names.
#[derive(Debug)]
pub struct OpenSnapshot {
    /// What it is.
    pub record: SnapshotRecord,
    /// State, memory and disk 0, each with its role; the private top is the caller's to add.
    pub files: Vec<(FdRole, OwnedFd)>,
    /// Size of disk 0: how large a top has to be.
    pub disk_bytes: u64,
}

impl Store {
    /// Opens a snapshot, or hands out the one that is open already.
    pub fn open_snapshot(&self, tag: &Tag) -> Result<Arc<OpenSnapshot>, StoreError> {
        let _ = tag;
        todo!()
    }
}
