//! Published snapshots: finding, verifying and removing them.

use std::path::PathBuf;

use forkd_protocol::names::Tag;
use forkd_protocol::rest::SnapshotInfo;
use rusqlite::{OptionalExtension, params};

use crate::chain::view;
use crate::content::forget;
use crate::disk;
use crate::draft::MAX_STATE_BYTES;
use crate::error::StoreError;
use crate::layers::{self, LayerBounds};
use crate::manifest::{MANIFEST_FORMAT, Manifest};
use crate::records::SnapshotRecord;
use crate::store::Store;

const COLUMNS: &str = "SELECT s.tag, s.id, s.manifest, parent.tag FROM snapshots s
    LEFT JOIN snapshots parent ON parent.id = s.manifest ->> 'parent' WHERE s.status = 'ready'";

/// A row as it lies in the registry: tag, id, manifest, and the tag of its parent.
type Row = (String, String, String, Option<String>);

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

    fn snapshot_of(&self, (tag, id, text, parent_tag): Row) -> Result<SnapshotRecord, StoreError> {
        let manifest = self.parse_manifest(&id, &text)?;
        Ok(SnapshotRecord {
            info: SnapshotInfo { parent_tag, ..self.info(tag, &id, &manifest) },
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

    fn info(&self, tag: String, id: &str, manifest: &Manifest) -> SnapshotInfo {
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
            warning: None,
            image: manifest.image.name.clone(),
            image_hash: manifest.image.hash.clone(),
            kernel: manifest.kernel.clone(),
            vcpus: manifest.vcpus,
            memory_mib: manifest.memory_mib,
            memory_physical_bytes: manifest.memory.iter().map(|layer| physical(&layer.hash)).sum(),
            memory_hash: manifest.memory.last().map(|layer| layer.hash.clone()).unwrap_or_default(),
            timing: manifest.timing,
        }
    }

    pub(crate) fn snapshot_folder(&self, id: &str) -> PathBuf {
        self.folder("snapshots").join(id)
    }

    pub(crate) fn state_path(&self, id: &str) -> PathBuf {
        self.snapshot_folder(id).join("state")
    }

    pub(crate) fn layer_path(&self, hash: &str) -> PathBuf {
        self.folder("layers").join(hash)
    }

    pub(crate) fn layer_table_path(&self, hash: &str) -> PathBuf {
        self.folder("layers").join(format!("{hash}.extents"))
    }

    /// Removes a snapshot. Children that run keep what they need.
    pub fn remove_snapshot(&self, tag: &Tag) -> Result<(), StoreError> {
        let _guard = self.content_lock();
        let record = self.snapshot(tag)?;
        let doomed = self.shared.db.commit_removal(|t| {
            t.execute("DELETE FROM snapshots WHERE tag = ?1 AND id = ?2", params![tag.as_str(), record.id])?;
            forget(t)
        })?;
        self.shared.open.forget(&record.id);
        disk::remove_folder(&self.snapshot_folder(&record.id))?;
        self.drop_content(doomed)
    }

    /// Reads everything that a snapshot consists of and compares it with what its names say.
    pub fn verify_snapshot(&self, tag: &Tag) -> Result<(), StoreError> {
        let SnapshotRecord { id, manifest, .. } = self.snapshot(tag)?;
        let text = self.snapshot_folder(&id).join("manifest.json");
        expect(&text, &id, disk::hash_file("a manifest", &text, 1 << 30)?.1.to_hex().as_str())?;
        let state = self.state_path(&id);
        let found = disk::hash_file("a machine state", &state, MAX_STATE_BYTES)?.1.to_hex();
        expect(&state, &manifest.state_hash, found.as_str())?;
        let image = self.image_path(&manifest.image.hash);
        expect(&image, &manifest.image.hash, &layers::hash_image(&image)?)?;
        for layer in manifest.layers() {
            let path = self.layer_path(&layer.hash);
            let bounds = LayerBounds { file_bytes: layer.size_bytes, data_bytes: layer.data_bytes };
            let found = layers::examine(&path, &self.layer_table_path(&layer.hash), bounds)?;
            expect(&path, &layer.hash, &found.hash)?;
        }
        let folder = self.snapshot_folder(&id);
        if view::wanted(&manifest) && !view::verify(&folder)? {
            return Err(StoreError::Damaged {
                path: folder.join(view::VIEW),
                found: "something else".to_owned(),
            });
        }
        Ok(())
    }
}

fn expect(path: &std::path::Path, expected: &str, found: &str) -> Result<(), StoreError> {
    if expected == found {
        return Ok(());
    }
    Err(StoreError::Damaged { path: path.to_owned(), found: found.to_owned() })
}

fn row_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
}
