//! Snapshots whose files are open, ready to be passed to monitors.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_protocol::control::{DiskPart, FdRole};
use forkd_protocol::names::Tag;

use crate::disk;
use crate::error::StoreError;
use crate::hot::Hot;
use crate::records::SnapshotRecord;
use crate::store::Store;

/// How many snapshots stay open while nobody uses them. Each takes a handful of descriptors.
const KEPT_OPEN: usize = 8;

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
    pub(crate) hot: Hot,
}

/// The snapshots that are open, most recently used last.
#[derive(Debug, Default)]
pub(crate) struct OpenSnapshots(Mutex<Vec<Arc<OpenSnapshot>>>);

impl OpenSnapshots {
    fn get(&self, tag: &str) -> Option<Arc<OpenSnapshot>> {
        let mut kept = self.lock();
        let at = kept.iter().position(|open| open.record.info.tag == tag)?;
        let found = kept.remove(at);
        kept.push(found.clone());
        Some(found)
    }

    fn put(&self, open: Arc<OpenSnapshot>) {
        let mut kept = self.lock();
        kept.retain(|other| other.record.info.tag != open.record.info.tag);
        kept.push(open);
        if kept.len() > KEPT_OPEN {
            kept.remove(0);
        }
    }

    pub(crate) fn forget(&self, tag: &str) {
        self.lock().retain(|open| open.record.info.tag != tag);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<OpenSnapshot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Opens a snapshot, or hands out the one that is open already.
    pub fn open_snapshot(&self, tag: &Tag) -> Result<Arc<OpenSnapshot>, StoreError> {
        if let Some(open) = self.shared.open.get(tag.as_str()) {
            return Ok(open);
        }
        // Neither row nor files can go away while the lock is held.
        let _guard = self.content_lock();
        let record = self.snapshot(tag)?;
        let files = self.open_files(&record)?;
        let disk_bytes = record.manifest.image.size_bytes;
        let mut open = OpenSnapshot { disk_bytes, record, files, hot: Hot::default() };
        open.hot = Hot::known(self.hot_of(&open));
        let open = Arc::new(open);
        self.shared.open.put(open.clone());
        Ok(open)
    }

    fn open_files(&self, record: &SnapshotRecord) -> Result<Vec<(FdRole, OwnedFd)>, StoreError> {
        let disk = |part| FdRole::Disk { disk: 0, part };
        let manifest = &record.manifest;
        let mut wanted = vec![(FdRole::State, self.state_path(&record.id))];
        if let Some(base) = manifest.memory.first() {
            wanted.push((FdRole::MemoryBase, self.layer_path(&base.hash)));
        }
        wanted.push((disk(DiskPart::Base), self.image_path(&manifest.image.hash)));
        for (n, layer) in (0u16..).zip(&manifest.disk) {
            wanted.push((disk(DiskPart::Layer(n)), self.layer_path(&layer.hash)));
            wanted.push((disk(DiskPart::Extents(n)), self.layer_table_path(&layer.hash)));
        }
        wanted.into_iter().map(|(role, path)| Ok((role, disk::open(&path)?.into()))).collect()
    }
}
