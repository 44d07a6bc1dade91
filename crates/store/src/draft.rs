//! Making a snapshot: a draft that a monitor writes into, then publishing.
//!
//! What the monitor wrote is bounded, hashed and fsynced before it is named. The monitor ran a guest that
//! may have captured it: its files are input like any other.

mod compact;
mod examine;

use std::fs::File;
use std::path::{Path, PathBuf};

use forkd_protocol::names::Tag;
use rusqlite::{ErrorCode, Transaction, params};

use self::examine::Examined;
pub(crate) use self::examine::NewLayer;
use crate::chain::{name_content, view};
use crate::content::Content;
use crate::db::to_sql;
use crate::disk;
use crate::error::StoreError;
use crate::manifest::{LayerRef, Manifest};
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::store::{Store, now};

/// The largest machine state.
pub(crate) const MAX_STATE_BYTES: u64 = 64 << 20;
/// The most memory a guest has.
pub(crate) const MAX_MEMORY_MIB: u64 = 16 << 10;
/// Guest memory leaves a hole below 4 GiB, so its last address lies at most this far behind its size.
pub(crate) const MEMORY_HOLE: u64 = 4 << 30;

/// What becomes `snapshots/<id>`.
const FOLDER: &str = "snapshot";
const STATE: &str = "state";
const TAKEN_STATE: &str = "state.taken";
const MEMORY: &str = "memory";
const MEMORY_EXTENTS: &str = "memory.extents";
const DISK: &str = "disk";
const DISK_EXTENTS: &str = "disk.extents";

/// Frees the tag of a draft, unless it was published.
const FREE_TAG: &str = "DELETE FROM snapshots WHERE draft = ?1 AND status = 'writing'";

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
    has_disk: bool,
    reserved: ReservedTag,
    staging: tempfile::TempDir,
}

/// A tag whose row says `writing`; the row goes away with this, unless it was made `ready`.
#[derive(Debug)]
pub(crate) struct ReservedTag {
    store: Store,
    pub(crate) tag: Tag,
    /// Tells this reservation from a later one of the same tag.
    draft: String,
}

impl Store {
    /// Reserves `tag` and opens the files that a monitor writes. A second caller gets
    /// [`StoreError::TagTaken`], also while the first has not published yet.
    pub fn begin_snapshot(&self, tag: &Tag) -> Result<SnapshotDraft, StoreError> {
        let reserved = ReservedTag::new(self, tag)?;
        let staging = self.staging()?;
        let create = |name: &str| disk::create_new(&staging.path().join(name));
        let files = DraftFiles {
            state: create(STATE)?,
            memory: create(MEMORY)?,
            memory_extents: create(MEMORY_EXTENTS)?,
            disk_extents: create(DISK_EXTENTS)?,
        };
        Ok(SnapshotDraft { files, has_disk: false, reserved, staging })
    }
}

impl ReservedTag {
    pub(crate) fn new(store: &Store, tag: &Tag) -> Result<Self, StoreError> {
        let draft = uuid::Uuid::new_v4().to_string();
        let row = params![tag.as_str(), draft, to_sql(now())];
        let insert = "INSERT INTO snapshots (tag, draft, status, created_at) VALUES (?1, ?2, 'writing', ?3)";
        let db = &store.shared.db;
        let mut abandoned = store.abandoned();
        db.commit(|t| {
            for gone in abandoned.iter() {
                t.execute(FREE_TAG, [gone]).map_err(|e| db.failed(e))?;
            }
            t.execute(insert, row).map_err(|e| match e.sqlite_error_code() {
                Some(ErrorCode::ConstraintViolation) => StoreError::TagTaken { tag: tag.to_string() },
                _ => db.failed(e),
            })
        })?;
        abandoned.clear();
        drop(abandoned);
        Ok(Self { store: store.clone(), tag: tag.clone(), draft })
    }

    /// Makes the snapshot exist, once the transaction is committed.
    pub(crate) fn fulfil(
        &self,
        t: &Transaction<'_>,
        id: &str,
        text: &str,
        manifest: &Manifest,
    ) -> Result<(), StoreError> {
        let failed = |e| self.store.shared.db.failed(e);
        name_content(t, id, manifest).map_err(failed)?;
        let update = "UPDATE snapshots SET status = 'ready', id = ?1, manifest = ?2 WHERE draft = ?3";
        match t.execute(update, [id, text, &self.draft]).map_err(failed)? {
            1 => Ok(()),
            // The registry was changed by somebody else.
            _ => Err(failed(rusqlite::Error::QueryReturnedNoRows)),
        }
    }
}

impl Drop for ReservedTag {
    fn drop(&mut self) {
        let freed = self.store.shared.db.run(|c| c.execute(FREE_TAG, [&self.draft]));
        if freed.is_err() {
            self.store.abandoned().push(std::mem::take(&mut self.draft));
        }
    }
}

impl SnapshotDraft {
    /// The files for the monitor.
    pub fn outputs(&mut self) -> &DraftFiles {
        &self.files
    }

    /// Moves the frozen top of disk 0 in; `path` must lie in the store. Without it the snapshot's disk is
    /// the image alone.
    pub fn adopt_disk_top(&mut self, path: &Path) -> Result<(), StoreError> {
        disk::rename(path, &self.path(DISK))?;
        self.has_disk = true;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.staging.path().join(name)
    }

    /// Checks and hashes everything and makes the snapshot visible under its tag.
    pub fn publish(self, meta: SnapshotMeta) -> Result<SnapshotRecord, StoreError> {
        let examined = self.examine(meta)?;
        self.commit(&examined)
    }

    /// Writes what is left to write, moves everything to where it belongs and makes the snapshot visible.
    fn commit(self, examined: &Examined) -> Result<SnapshotRecord, StoreError> {
        let text = serde_json::to_string_pretty(&examined.manifest)
            .map_err(|e| StoreError::io("write", self.path("manifest.json"), std::io::Error::from(e)))?;
        let id = blake3::hash(text.as_bytes()).to_hex().to_string();
        self.write_folder(examined, &text)?;
        // Before the lock is taken: forks wait for it, and this waits for the disk.
        for new in examined.new_layers() {
            disk::seal(&new.table)?;
            disk::seal(&new.data)?;
        }

        let store = self.reserved.store.clone();
        let _guard = store.content_lock();
        self.check_base(examined)?;
        let placed = self.place(&id, examined);
        let fulfil = |t: &Transaction<'_>| self.reserved.fulfil(t, &id, &text, &examined.manifest);
        let done = placed.and_then(|()| store.shared.db.commit(fulfil));
        if let Err(error) = done {
            // Opening the store sweeps what this leaves; the first error is the one to know.
            let _ = disk::remove_folder(&store.snapshot_folder(&id));
            let _ = store.drop_content(Content::of(&examined.manifest));
            return Err(error);
        }
        store.snapshot(&self.reserved.tag)
    }

    /// Writes what goes into the snapshot's own folder: manifest, state, and the view where there is a chain.
    fn write_folder(&self, examined: &Examined, text: &str) -> Result<(), StoreError> {
        let folder = self.path(FOLDER);
        disk::create_folder(&folder)?;
        match (&examined.memory, &*examined.manifest.memory) {
            (Some(new), [_, only]) if view::can_be(only) => {
                view::link(only, (&new.data, &new.table), &folder)?;
            }
            (_, memory) if view::wanted(memory) => {
                view::write(&self.whole_memory(examined)?, examined.manifest.memory_bytes(), &folder)?;
            }
            _ => {}
        }
        disk::rename(&examined.state, &folder.join(STATE))?;
        let path = folder.join("manifest.json");
        std::fs::write(&path, text).map_err(|e| StoreError::io("write", &path, e))?;
        disk::seal(&path)?;
        disk::seal(&folder.join(STATE))?;
        disk::sync_folder(&folder)
    }

    /// What the snapshot names and does not bring may be gone by now. The content lock must be held.
    fn check_base(&self, examined: &Examined) -> Result<(), StoreError> {
        let (store, manifest) = (&self.reserved.store, &examined.manifest);
        if !store.image_path(&manifest.image.hash).exists() {
            return Err(StoreError::Vanished { kind: "image", name: manifest.image.name.clone() });
        }
        let brought = |layer: &LayerRef| examined.new_layers().any(|new| new.layer == *layer);
        match manifest.layers().find(|layer| !brought(layer) && !store.has_layer(&layer.hash)) {
            Some(gone) => Err(StoreError::Vanished { kind: "layer", name: gone.hash.clone() }),
            None => Ok(()),
        }
    }

    /// Moves everything to where the manifest says it is. The content lock must be held.
    fn place(&self, id: &str, examined: &Examined) -> Result<(), StoreError> {
        let store = &self.reserved.store;
        for new in examined.new_layers() {
            store.place_layer(&new.layer.hash, &new.data, &new.table)?;
        }
        disk::sync_folder(&store.folder("layers"))?;
        disk::rename(&self.path(FOLDER), &store.snapshot_folder(id))?;
        disk::sync_folder(&store.folder("snapshots"))
    }
}

#[cfg(test)]
mod tests;
