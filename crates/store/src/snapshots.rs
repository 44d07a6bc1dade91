//! Published snapshots: finding them.

use std::io::Read;
use std::path::PathBuf;

use forkd_protocol::control::STATE_MAGIC;
use forkd_protocol::names::Tag;
use forkd_protocol::rest::{ImageInfo, SnapshotInfo, SnapshotTiming};
use rusqlite::OptionalExtension;

use crate::disk;
use crate::error::StoreError;
use crate::manifest::{ImageRef, LayerRef, MANIFEST_FORMAT, Manifest};
use crate::records::{ImageRecord, SnapshotRecord};
use crate::store::{Store, now};

const COLUMNS: &str = "SELECT s.tag, s.id, s.manifest, parent.tag, claims.tenant FROM snapshots s
    LEFT JOIN snapshots parent ON parent.id = s.manifest ->> 'parent'
    LEFT JOIN claims ON claims.tag = s.tag WHERE s.status = 'ready'";

/// A row as it lies in the registry: tag, id, manifest, the tag of its parent, and whose it is.
type Row = (String, String, String, Option<String>, Option<String>);

impl Store {
    /// All published snapshots, by tag.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRecord>, StoreError> {
        let rows: Vec<Row> = self.shared.db.run(|c| {
            c.prepare_cached(&format!("{COLUMNS} ORDER BY s.tag"))?.query_map([], row_of)?.collect()
        })?;
        rows.into_iter().map(|row| self.snapshot_of(row)).collect()
    }

    /// One published snapshot.
    pub fn snapshot(&self, tag: &Tag) -> Result<SnapshotRecord, StoreError> {
        let query = format!("{COLUMNS} AND s.tag = ?1");
        let row = self.shared.db.run(|c| c.query_row(&query, [tag.as_str()], row_of).optional())?;
        let row = row.ok_or_else(|| StoreError::NotFound { kind: "snapshot", name: tag.to_string() })?;
        self.snapshot_of(row)
    }

    fn snapshot_of(&self, (tag, id, text, parent_tag, tenant): Row) -> Result<SnapshotRecord, StoreError> {
        let manifest = self.parse_manifest(&id, &text)?;
        Ok(SnapshotRecord {
            info: SnapshotInfo { parent_tag, tenant, ..self.info(tag, &id, &manifest) },
            id,
            manifest,
        })
    }

    /// Reads the manifest of a snapshot, as a row has it.
    pub(crate) fn parse_manifest(&self, id: &str, text: &str) -> Result<Manifest, StoreError> {
        let path = self.snapshot_folder(id).join("manifest.json");
        let manifest: Manifest = serde_json::from_str(text).map_err(|e| StoreError::Format {
            path: path.clone(),
            found: format!("unknown ({e})"),
            known: MANIFEST_FORMAT,
        })?;
        if manifest.format != MANIFEST_FORMAT {
            return Err(StoreError::Format {
                path,
                found: manifest.format.to_string(),
                known: MANIFEST_FORMAT,
            });
        }
        Ok(manifest)
    }

    pub(crate) fn info(&self, tag: String, id: &str, manifest: &Manifest) -> SnapshotInfo {
        let physical = |hash: &str| disk::physical_bytes(&self.layer_path(hash));
        SnapshotInfo {
            tag,
            id: id.to_owned(),
            parent_id: manifest.parent.clone(),
            parent_tag: None,
            chain_depth: u32::try_from(manifest.memory.len()).unwrap_or(u32::MAX),
            dir: self.snapshot_folder(id).display().to_string(),
            created_at_unix: manifest.created_at_unix,
            status: "ready".to_owned(),
            bootable: true,
            branched_from: manifest.branched_from.clone(),
            pause_ms: manifest.pause_ms,
            workload_pause_ms: manifest.workload_pause_ms,
            limits: manifest.limits,
            network: manifest.network.clone(),
            secrets: manifest.secrets.clone(),
            diff_ms: None,
            diff_logical_bytes: own_layer(manifest).map(|layer| layer.data_bytes),
            diff_physical_bytes: own_layer(manifest).map(|layer| physical(&layer.hash)),
            warning: None,
            image: manifest.image.name.clone(),
            image_hash: manifest.image.hash.clone(),
            kernel: manifest.kernel.clone(),
            vcpus: manifest.vcpus,
            memory_mib: manifest.memory_mib,
            memory_physical_bytes: manifest.memory.iter().map(|layer| physical(&layer.hash)).sum(),
            memory_hash: manifest.memory.last().map(|layer| layer.hash.clone()).unwrap_or_default(),
            timing: manifest.timing,
            tenant: None,
        }
    }

    /// What is told of a snapshot of a restored machine while it is being written.
    pub fn provisional(&self, tag: &Tag, template: &Manifest) -> SnapshotInfo {
        let info = self.info(tag.to_string(), "", template);
        SnapshotInfo {
            dir: String::new(),
            created_at_unix: now(),
            status: "writing".to_owned(),
            bootable: false,
            parent_id: None,
            memory_hash: String::new(),
            memory_physical_bytes: 0,
            diff_logical_bytes: None,
            diff_physical_bytes: None,
            timing: SnapshotTiming::default(),
            tenant: self.tag_owner(tag).ok().flatten(),
            ..info
        }
    }

    /// The image below a snapshot, for a snapshot that lies on it.
    pub fn image_below(&self, image: &ImageRef) -> ImageRecord {
        let path = self.image_path(&image.hash);
        let info = ImageInfo {
            name: image.name.clone(),
            created_at_unix: 0,
            size_bytes: image.size_bytes,
            physical_bytes: disk::physical_bytes(&path),
            hash: image.hash.clone(),
            origin: image.origin.clone(),
        };
        ImageRecord { info, path }
    }

    /// Whether a row names the snapshot of this id.
    pub(crate) fn has_snapshot(&self, id: &str) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM snapshots WHERE id = ?1)";
        self.shared.db.run(|c| c.query_row(query, [id], |row| row.get(0)))
    }

    /// The tag of the snapshot of this id.
    pub(crate) fn tag_of(&self, id: &str) -> Result<Option<String>, StoreError> {
        let query = "SELECT tag FROM snapshots WHERE id = ?1";
        self.shared.db.run(|c| c.query_row(query, [id], |row| row.get(0)).optional())
    }

    /// Whether a tag names a snapshot, or one that is being made.
    pub(crate) fn is_taken(&self, tag: &Tag) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM snapshots WHERE tag = ?1)";
        self.shared.db.run(|c| c.query_row(query, [tag.as_str()], |row| row.get(0)))
    }

    /// Whether both files of a layer are there.
    pub(crate) fn has_layer(&self, hash: &str) -> bool {
        self.layer_path(hash).exists() && self.layer_table_path(hash).exists()
    }

    pub(crate) fn snapshot_folder(&self, id: &str) -> PathBuf {
        self.folder("snapshots").join(id)
    }

    pub(crate) fn state_path(&self, id: &str) -> PathBuf {
        self.snapshot_folder(id).join("state")
    }

    /// Which version a machine state says it has; `None` for one that does not begin as one does.
    pub(crate) fn state_format(&self, id: &str) -> Option<u32> {
        let mut head = [0; STATE_MAGIC.len() + 4];
        disk::open(&self.state_path(id)).ok()?.read_exact(&mut head).ok()?;
        let (magic, version) = head.split_at(STATE_MAGIC.len());
        let version = u32::from_le_bytes(version.try_into().ok()?);
        (magic == STATE_MAGIC).then_some(version)
    }

    pub(crate) fn layer_path(&self, hash: &str) -> PathBuf {
        self.folder("layers").join(hash)
    }

    pub(crate) fn layer_table_path(&self, hash: &str) -> PathBuf {
        self.folder("layers").join(format!("{hash}.extents"))
    }
}

fn row_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
}

/// The memory layer that a snapshot in a chain brought itself.
fn own_layer(manifest: &Manifest) -> Option<&LayerRef> {
    manifest.memory.split_first().and_then(|(_, upper)| upper.last())
}
