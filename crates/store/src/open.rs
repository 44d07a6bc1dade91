//! Snapshots whose files are open, ready to be passed to monitors.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};

use forkd_protocol::control::{DiskPart, FdRole};
use forkd_protocol::names::Tag;

use crate::chain::view;
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
    /// Version of the machine state; `None` where it does not begin as one does.
    pub state_format: Option<u32>,
    pub(crate) hot: Hot,
    pub(crate) read_in: Once,
}

impl OpenSnapshot {
    /// Has its memory read in by the first caller; others wait until that is done. Blocks.
    pub fn read_in_once(&self, read: impl FnOnce()) {
        self.read_in.call_once(read);
    }
}

/// The snapshots that are open.
#[derive(Debug, Default)]
pub(crate) struct OpenSnapshots(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Open whether anybody uses them or not; most recently used last.
    kept: Vec<Arc<OpenSnapshot>>,
    /// All that are open.
    live: Vec<Weak<OpenSnapshot>>,
}

impl OpenSnapshots {
    fn get(&self, tag: &str) -> Option<Arc<OpenSnapshot>> {
        let kept = &mut self.lock().kept;
        let at = kept.iter().position(|open| open.record.info.tag == tag)?;
        let found = kept.remove(at);
        kept.push(found.clone());
        Some(found)
    }

    fn put(&self, open: &Arc<OpenSnapshot>) {
        let known = &mut *self.lock();
        known.live.retain(|open| open.strong_count() > 0);
        known.live.push(Arc::downgrade(open));
        known.kept.retain(|other| other.record.info.tag != open.record.info.tag);
        known.kept.push(open.clone());
        if known.kept.len() > KEPT_OPEN {
            known.kept.remove(0);
        }
    }

    /// The next caller opens it anew; whoever has it open keeps it.
    pub(crate) fn forget(&self, id: &str) {
        self.lock().kept.retain(|open| open.record.id != id);
    }

    /// The snapshot of this id, where somebody has it open.
    pub(crate) fn live(&self, id: &str) -> Option<Arc<OpenSnapshot>> {
        self.lock().live.iter().filter_map(Weak::upgrade).find(|open| open.record.id == id)
    }

    /// Whether somebody has a snapshot open that consists of this content, among others.
    pub(crate) fn uses(&self, hash: &str) -> bool {
        self.lock().live.iter().filter_map(Weak::upgrade).any(|open| {
            let manifest = &open.record.manifest;
            manifest.image.hash == hash || manifest.layers().any(|layer| layer.hash == hash)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Opens a snapshot, or hands out the one that is open already. A view that is missing or damaged is made
    /// again first.
    pub fn open_snapshot(&self, tag: &Tag) -> Result<Arc<OpenSnapshot>, StoreError> {
        if let Some(open) = self.shared.open.get(tag.as_str()) {
            return Ok(open);
        }
        let (_guard, record) = self.with_view(tag)?;
        let files = self.open_files(&record)?;
        let disk_bytes = record.manifest.image.size_bytes;
        let hot = Hot::known(self.hot_of(&record));
        let state_format = self.state_format(&record.id);
        let read_in = Once::new();
        let open = Arc::new(OpenSnapshot { disk_bytes, state_format, record, files, hot, read_in });
        self.shared.open.put(&open);
        Ok(open)
    }

    /// A snapshot whose view is sound. Neither row nor files can go away while the lock is held; looking after the
    /// view may take too long for that.
    fn with_view(&self, tag: &Tag) -> Result<(MutexGuard<'_, ()>, SnapshotRecord), StoreError> {
        loop {
            let record = self.snapshot(tag)?;
            self.look_after_view(&record)?;
            let guard = self.content_lock();
            if self.snapshot(tag)?.id == record.id {
                return Ok((guard, record));
            }
        }
    }

    /// Makes a view that is missing or damaged again.
    pub(crate) fn look_after_view(&self, record: &SnapshotRecord) -> Result<(), StoreError> {
        let folder = self.snapshot_folder(&record.id);
        let fine = !view::wanted(&record.manifest.memory) || view::is_sound(&folder);
        if fine { Ok(()) } else { self.rebuild_view(record) }
    }

    pub(crate) fn open_files(&self, record: &SnapshotRecord) -> Result<Vec<(FdRole, OwnedFd)>, StoreError> {
        let disk = |part| FdRole::Disk { disk: 0, part };
        let manifest = &record.manifest;
        let mut wanted = vec![(FdRole::State, self.state_path(&record.id))];
        if let Some(base) = manifest.memory.first() {
            wanted.push((FdRole::MemoryBase, self.layer_path(&base.hash)));
        }
        if view::wanted(&manifest.memory) {
            let folder = self.snapshot_folder(&record.id);
            wanted.push((FdRole::MemoryUpper, folder.join(view::VIEW)));
            wanted.push((FdRole::MemoryUpperExtents, folder.join(view::VIEW_EXTENTS)));
        }
        wanted.push((disk(DiskPart::Base), self.image_path(&manifest.image.hash)));
        for (n, layer) in (0u16..).zip(&manifest.disk) {
            wanted.push((disk(DiskPart::Layer(n)), self.layer_path(&layer.hash)));
            wanted.push((disk(DiskPart::Extents(n)), self.layer_table_path(&layer.hash)));
        }
        wanted
            .into_iter()
            .map(|(role, path)| {
                let file = disk::open(&path)?;
                if matches!(role, FdRole::Disk { .. }) {
                    // A guest reads ahead by itself. What the host read beside that would be charged to the first
                    // child that comes by. Only advice: where it is not taken, all is as right.
                    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
                }
                Ok((role, file.into()))
            })
            .collect()
    }
}
