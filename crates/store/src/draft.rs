//! Making a snapshot: a draft that a monitor writes into, then publishing.
//!
//! What the monitor wrote is bounded, hashed and fsynced before it is named. The monitor ran a guest that
//! may have captured it: its files are input like any other.

mod compact;
mod examine;
mod pause;
mod reserved;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

use forkd_protocol::names::Tag;

use self::examine::Examined;
pub use self::pause::{Floor, PauseDraft};
pub(crate) use self::reserved::ReservedTag;
use crate::chain::view;
use crate::content::Content;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::manifest::LayerRef;
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::store::Store;

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
    draft: Draft,
    files: DraftFiles,
    reserved: ReservedTag,
}

/// What is being made, whoever will name it. Dropping it removes its files.
#[derive(Debug)]
struct Draft {
    store: Store,
    has_disk: bool,
    staging: tempfile::TempDir,
}

impl Store {
    /// Reserves `tag` and opens the files that a monitor writes. A second caller gets
    /// [`StoreError::TagTaken`], also while the first has not published yet.
    pub fn begin_snapshot(&self, tag: &Tag) -> Result<SnapshotDraft, StoreError> {
        let reserved = ReservedTag::new(self, tag)?;
        fault::at!("store::begin::reserved");
        SnapshotDraft::new(self, reserved)
    }

    /// The same in the place of a snapshot that is there: its tag names it until the new one is published, and that
    /// one from then on. What others need of the old one stays.
    pub fn begin_replacement(&self, old: &SnapshotRecord) -> Result<SnapshotDraft, StoreError> {
        let tag = old.info.tag.parse().map_err(|_| StoreError::not_found("snapshot", &old.info.tag))?;
        let reserved = ReservedTag::beside(self, &tag, &old.id)?;
        SnapshotDraft::new(self, reserved)
    }
}

impl SnapshotDraft {
    fn new(store: &Store, reserved: ReservedTag) -> Result<Self, StoreError> {
        let (draft, files) = Draft::new(store)?;
        Ok(Self { draft, files, reserved })
    }

    /// The files for the monitor.
    pub fn outputs(&mut self) -> &DraftFiles {
        &self.files
    }

    /// Moves the frozen top of disk 0 in; `path` must lie in the store. Without it the snapshot's disk is
    /// the image alone.
    pub fn adopt_disk_top(&mut self, path: &Path) -> Result<(), StoreError> {
        disk::rename(path, &self.draft.path(DISK))?;
        fault::at!("store::begin::disk_moved");
        self.draft.has_disk = true;
        Ok(())
    }

    /// Checks and hashes everything and makes the snapshot visible under its tag.
    pub fn publish(self, meta: SnapshotMeta) -> Result<SnapshotRecord, StoreError> {
        let Self { draft, files, reserved } = self;
        // Whoever can still write to them is not this process.
        drop(files);
        let examined = draft.examine(meta)?;
        fault::at!("store::publish::examined");
        draft.commit(&examined, &reserved)
    }
}

impl Draft {
    /// Makes the snapshot visible under its tag.
    fn commit(&self, examined: &Examined, reserved: &ReservedTag) -> Result<SnapshotRecord, StoreError> {
        let (store, manifest) = (&self.store, &examined.manifest);
        let fulfil =
            |id: &str, text: &str| store.shared.db.commit(|t| reserved.fulfil(t, id, text, manifest));
        let (guard, replaced) = self.put(examined, fulfil)?;
        let record = store.snapshot(reserved.tag());
        if let Some(replaced) = replaced {
            // It is published; what this leaves is swept when the store opens.
            let _ = store.drop_replaced(replaced);
        }
        drop(guard);
        record
    }

    fn new(store: &Store) -> Result<(Self, DraftFiles), StoreError> {
        let staging = store.staging()?;
        let create = |name: &str| disk::create_new(&staging.path().join(name));
        let files = DraftFiles {
            state: create(STATE)?,
            memory: create(MEMORY)?,
            memory_extents: create(MEMORY_EXTENTS)?,
            disk_extents: create(DISK_EXTENTS)?,
        };
        fault::at!("store::begin::staged");
        Ok((Self { store: store.clone(), has_disk: false, staging }, files))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.staging.path().join(name)
    }

    /// Writes what is left to write, moves everything to where it belongs and has it named by `name`, which is given
    /// its id and manifest. Returns with the content lock.
    fn put<T>(
        &self,
        examined: &Examined,
        name: impl FnOnce(&str, &str) -> Result<T, StoreError>,
    ) -> Result<(MutexGuard<'_, ()>, T), StoreError> {
        let text = serde_json::to_string_pretty(&examined.manifest)
            .map_err(|e| StoreError::io("write", self.path("manifest.json"), std::io::Error::from(e)))?;
        let id = blake3::hash(text.as_bytes()).to_hex().to_string();
        self.write_folder(examined, &text)?;
        fault::at!("store::publish::folder_written");
        // Before the lock is taken: forks wait for it, and this waits for the disk.
        for new in examined.new_layers() {
            disk::seal(&new.table)?;
            disk::seal(&new.data)?;
        }
        fault::at!("store::publish::sealed");

        let store = &self.store;
        let guard = store.content_lock();
        self.check_base(examined)?;
        let placed = self.place(&id, examined);
        match placed.and_then(|()| name(&id, &text)) {
            Ok(named) => {
                fault::at!("store::publish::named");
                Ok((guard, named))
            }
            Err(error) => {
                // Opening the store sweeps what this leaves; the first error is the one to know.
                let _ = disk::remove_folder(&store.snapshot_folder(&id));
                let _ = store.drop_content(Content::of(&examined.manifest));
                Err(error)
            }
        }
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
        if let Some(akin) = &examined.akin {
            self.store.inherit_hot(akin, &folder);
        }
        disk::rename(&examined.state, &folder.join(STATE))?;
        fault::at!("store::publish::state_moved");
        let path = folder.join("manifest.json");
        std::fs::write(&path, text).map_err(|e| StoreError::io("write", &path, e))?;
        disk::seal(&path)?;
        disk::seal(&folder.join(STATE))?;
        disk::sync_folder(&folder)
    }

    /// What the snapshot names and does not bring may be gone by now. The content lock must be held.
    fn check_base(&self, examined: &Examined) -> Result<(), StoreError> {
        let (store, manifest) = (&self.store, &examined.manifest);
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
        let store = &self.store;
        for new in examined.new_layers() {
            store.place_layer(&new.layer.hash, &new.data, &new.table)?;
        }
        disk::sync_folder(&store.folder("layers"))?;
        fault::at!("store::publish::layers_placed");
        disk::rename(&self.path(FOLDER), &store.snapshot_folder(id))?;
        fault::at!("store::publish::renamed");
        disk::sync_folder(&store.folder("snapshots"))
    }
}

#[cfg(test)]
mod tests;
