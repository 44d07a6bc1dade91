//! Making a snapshot: a draft that a monitor writes into, then publishing.
//!
//! What the monitor wrote is bounded, hashed and fsynced before it is named. The monitor ran a guest that
//! may have captured it: its files are input like any other.

use std::fs::File;
use std::path::{Path, PathBuf};

use forkd_protocol::names::Tag;
use rusqlite::{ErrorCode, params};

use crate::db::to_sql;
use crate::disk;
use crate::error::StoreError;
use crate::layers::{self, LayerBounds};
use crate::manifest::{ImageRef, LayerRef, MANIFEST_FORMAT, Manifest};
use crate::records::{SnapshotMeta, SnapshotRecord};
use crate::store::{Store, now};

/// The largest machine state.
pub(crate) const MAX_STATE_BYTES: u64 = 64 << 20;
/// The most memory a guest has.
const MAX_MEMORY_MIB: u64 = 16 << 10;
/// Guest memory leaves a hole below 4 GiB, so its last address lies at most this far behind its size.
const MEMORY_HOLE: u64 = 4 << 30;

const STATE: &str = "state";
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
struct ReservedTag {
    store: Store,
    tag: Tag,
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
    fn new(store: &Store, tag: &Tag) -> Result<Self, StoreError> {
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

    /// The commit point: from here on the snapshot exists.
    fn fulfil(&self, id: &str, text: &str, manifest: &Manifest) -> Result<(), StoreError> {
        let db = &self.store.shared.db;
        db.commit(|t| {
            let failed = |e| db.failed(e);
            let mut content: Vec<(&str, &str)> = vec![("image", &manifest.image.hash)];
            content.extend(manifest.memory.iter().chain(&manifest.disk).map(|l| ("layer", l.hash.as_str())));
            for (kind, hash) in content {
                let insert =
                    "INSERT OR IGNORE INTO snapshot_content (snapshot, kind, hash) VALUES (?1, ?2, ?3)";
                t.execute(insert, [id, kind, hash]).map_err(failed)?;
            }
            let update = "UPDATE snapshots SET status = 'ready', id = ?1, manifest = ?2 WHERE draft = ?3";
            match t.execute(update, [id, text, &self.draft]).map_err(failed)? {
                1 => Ok(()),
                // The registry was changed by somebody else.
                _ => Err(failed(rusqlite::Error::QueryReturnedNoRows)),
            }
        })
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
        let manifest = self.examine(meta)?;
        let text = serde_json::to_string_pretty(&manifest)
            .map_err(|e| StoreError::io("write", self.path("manifest.json"), std::io::Error::from(e)))?;
        let id = blake3::hash(text.as_bytes()).to_hex().to_string();
        self.write_manifest(&text)?;

        let store = self.reserved.store.clone();
        let _guard = store.content_lock();
        let image = store.image_path(&manifest.image.hash);
        if !image.exists() {
            return Err(StoreError::Vanished { kind: "image", name: manifest.image.name });
        }
        let placed = self.place(&id, &manifest);
        let done = placed.and_then(|()| self.reserved.fulfil(&id, &text, &manifest));
        if let Err(error) = done {
            // Opening the store sweeps what this leaves; the first error is the one to know.
            let _ = store.drop_snapshot_content(&id, &manifest);
            return Err(error);
        }
        store.snapshot(&self.reserved.tag)
    }

    /// Bounds and hashes what was written.
    fn examine(&self, meta: SnapshotMeta) -> Result<Manifest, StoreError> {
        if meta.memory_mib > MAX_MEMORY_MIB {
            let (bytes, max) = (meta.memory_mib << 20, MAX_MEMORY_MIB << 20);
            return Err(StoreError::Size { what: "guest memory", bytes, max });
        }
        let (state_bytes, state) = disk::hash_file("a machine state", &self.path(STATE), MAX_STATE_BYTES)?;
        let memory_bytes = meta.memory_mib << 20;
        let bounds = LayerBounds { file_bytes: memory_bytes + MEMORY_HOLE, data_bytes: memory_bytes };
        let memory = layers::examine(&self.path(MEMORY), &self.path(MEMORY_EXTENTS), bounds)?;
        let image = meta.image.info;
        Ok(Manifest {
            format: MANIFEST_FORMAT,
            uuid: uuid::Uuid::new_v4().to_string(),
            created_at_unix: now(),
            parent: meta.parent,
            state_hash: state.to_hex().to_string(),
            state_bytes,
            memory: vec![memory],
            disk: self.examine_disk(image.size_bytes)?,
            image: ImageRef {
                name: image.name,
                hash: image.hash,
                size_bytes: image.size_bytes,
                origin: image.origin,
            },
            kernel: meta.kernel.to_string(),
            vcpus: meta.vcpus,
            memory_mib: meta.memory_mib,
            cpu: meta.cpu,
            warm: meta.warm,
            agent_protocol: meta.agent_protocol,
            branched_from: meta.branched_from,
            pause_ms: meta.pause_ms,
            timing: meta.timing,
        })
    }

    /// The frozen top, unless nothing was written to it.
    fn examine_disk(&self, image_bytes: u64) -> Result<Vec<LayerRef>, StoreError> {
        if !self.has_disk {
            return Ok(Vec::new());
        }
        let bounds = LayerBounds { file_bytes: image_bytes, data_bytes: image_bytes };
        let layer = layers::examine(&self.path(DISK), &self.path(DISK_EXTENTS), bounds)?;
        Ok(Some(layer).filter(|layer| layer.extents > 0).into_iter().collect())
    }

    fn write_manifest(&self, text: &str) -> Result<(), StoreError> {
        let folder = self.path("snapshot");
        disk::create_folder(&folder)?;
        disk::rename(&self.path(STATE), &folder.join(STATE))?;
        let path = folder.join("manifest.json");
        std::fs::write(&path, text).map_err(|e| StoreError::io("write", &path, e))?;
        disk::seal(&path)?;
        disk::seal(&folder.join(STATE))?;
        disk::sync_folder(&folder)
    }

    /// Moves everything to where the manifest says it is. The content lock must be held.
    fn place(&self, id: &str, manifest: &Manifest) -> Result<(), StoreError> {
        let store = &self.reserved.store;
        let memory = manifest.memory.iter().map(|layer| (layer, MEMORY, MEMORY_EXTENTS));
        let disk = manifest.disk.iter().map(|layer| (layer, DISK, DISK_EXTENTS));
        for (layer, data, table) in memory.chain(disk) {
            let home = store.layer_path(&layer.hash);
            let table_home = store.layer_table_path(&layer.hash);
            // Equal content is there once; whoever has it open shares it with this snapshot.
            if home.exists() && table_home.exists() {
                continue;
            }
            disk::seal(&self.path(table))?;
            disk::seal(&self.path(data))?;
            disk::rename(&self.path(table), &table_home)?;
            disk::rename(&self.path(data), &home)?;
        }
        disk::sync_folder(&store.folder("layers"))?;
        disk::rename(&self.path("snapshot"), &store.snapshot_folder(id))?;
        disk::sync_folder(&store.folder("snapshots"))
    }
}

#[cfg(test)]
mod tests;
