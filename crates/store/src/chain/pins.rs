//! What a running sandbox keeps in the store, whatever happens to the tag it was forked from: image and layers of
//! its template (a branch of it names them), and the disk tops that were frozen under it.

use std::os::fd::OwnedFd;
use std::path::Path;

use forkd_protocol::names::SandboxId;
use rusqlite::{Connection, OptionalExtension, params};

use super::take;
use crate::content::Content;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::layers::LayerBounds;
use crate::manifest::{LayerRef, Manifest};
use crate::store::Store;

/// What a sandbox was restored from.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Id of the snapshot. Its tag may be gone, or name another one.
    pub id: String,
    /// What it consists of.
    pub manifest: Manifest,
    /// Tops of the sandbox's own disk that were frozen since, from below.
    pub frozen: Vec<LayerRef>,
}

impl Store {
    /// What a sandbox was restored from; `None` where its row names no snapshot.
    pub fn template(&self, sandbox: &SandboxId) -> Result<Option<Template>, StoreError> {
        let (found, frozen) = self.shared.db.run(|c| {
            let query = "SELECT t.snapshot, t.manifest FROM sandboxes s JOIN templates t ON t.snapshot = s.snapshot_id
                WHERE s.id = ?1";
            let found = c
                .query_row(query, [sandbox.as_str()], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))
                .optional()?;
            let frozen: Vec<String> = c
                .prepare_cached("SELECT layer FROM frozen_tops WHERE sandbox = ?1 ORDER BY position")?
                .query_map([sandbox.as_str()], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            Ok((found, frozen))
        })?;
        let Some((id, text)) = found else { return Ok(None) };
        let manifest = self.parse_manifest(&id, &text)?;
        let unreadable = |e: serde_json::Error| StoreError::io("read", self.folder("forkd.db"), e);
        let frozen = frozen.iter().map(|text| serde_json::from_str(text).map_err(unreadable));
        Ok(Some(Template { id, manifest, frozen: frozen.collect::<Result<_, _>>()? }))
    }

    /// Takes a frozen top of a sandbox's disk in as a layer, which stays as long as the sandbox's row or a
    /// snapshot that names it. `data` and `table` are removed; until the layer is pinned they stay, so that it can be
    /// taken in again after a crash. Where the sandbox, which runs on, has them open for writing, the layer is a copy.
    /// `None` where nothing was written to it.
    pub fn adopt_layer(
        &self,
        sandbox: &SandboxId,
        data: &Path,
        table: &Path,
        disk_bytes: u64,
    ) -> Result<Option<LayerRef>, StoreError> {
        let staging = self.staging()?;
        let (new, new_table) = (staging.path().join("layer"), staging.path().join("layer.extents"));
        let bounds = LayerBounds { file_bytes: disk_bytes, data_bytes: disk_bytes };
        let layer = take((data, table), (&new, &new_table), bounds, None)?.layer;
        fault::at!("store::top::taken");
        if layer.extents == 0 {
            disk::remove_file(data)?;
            disk::remove_file(table)?;
            return Ok(None);
        }
        disk::seal(&new_table)?;
        disk::seal(&new)?;
        let text =
            serde_json::to_string(&layer).map_err(|e| StoreError::io("write", self.folder("forkd.db"), e))?;
        let guard = self.content_lock();
        self.place_layer(&layer.hash, &new, &new_table)?;
        disk::sync_folder(&self.folder("layers"))?;
        fault::at!("store::top::placed");
        let db = &self.shared.db;
        let pinned = db.commit(|t| pin_top(t, sandbox, &layer.hash, &text).map_err(|e| db.failed(e)));
        if !matches!(pinned, Ok(true)) {
            self.drop_content([Content::Layer(layer.hash.clone())])?;
        }
        drop(guard);
        if !pinned? {
            return Err(StoreError::NotFound { kind: "sandbox", name: sandbox.to_string() });
        }
        fault::at!("store::top::pinned");
        disk::remove_file(data)?;
        fault::at!("store::top::data_removed");
        disk::remove_file(table)?;
        Ok(Some(layer))
    }

    /// Opens a layer, read only: its data and its table.
    pub fn open_layer(&self, layer: &LayerRef) -> Result<(OwnedFd, OwnedFd), StoreError> {
        let (data, table) = (self.layer_path(&layer.hash), self.layer_table_path(&layer.hash));
        Ok((disk::open(&data)?.into(), disk::open(&table)?.into()))
    }

    /// Moves a layer to where its hash says it is, unless it is there: equal content is there once. The content
    /// lock must be held, and the folder synced afterwards.
    pub(crate) fn place_layer(&self, hash: &str, data: &Path, table: &Path) -> Result<(), StoreError> {
        let (home, table_home) = (self.layer_path(hash), self.layer_table_path(hash));
        if home.exists() && table_home.exists() {
            return Ok(());
        }
        disk::rename(table, &table_home)?;
        fault::at!("store::layer::table_placed");
        disk::rename(data, &home)
    }
}

/// Adds a frozen top to a sandbox; false where there is no such sandbox. One that was added and not removed before a
/// crash comes again: over itself it adds nothing.
fn pin_top(c: &Connection, sandbox: &SandboxId, hash: &str, layer: &str) -> rusqlite::Result<bool> {
    let newest = "SELECT layer FROM frozen_tops WHERE sandbox = ?1 ORDER BY position DESC LIMIT 1";
    let newest: Option<String> = c.query_row(newest, [sandbox.as_str()], |row| row.get(0)).optional()?;
    if newest.as_deref() == Some(layer) {
        return Ok(true);
    }
    let add = "INSERT INTO frozen_tops (sandbox, position, layer)
        SELECT id, (SELECT count(*) FROM frozen_tops WHERE sandbox = ?1), ?2 FROM sandboxes WHERE id = ?1";
    let content = "INSERT OR IGNORE INTO snapshot_content (snapshot, kind, hash) VALUES (?1, 'layer', ?2)";
    Ok(c.execute(add, [sandbox.as_str(), layer])? == 1 && c.execute(content, [sandbox.as_str(), hash])? <= 1)
}

/// Notes what the sandboxes of a snapshot need. `open` is its manifest where it is in use without a row.
pub(crate) fn pin_template(c: &Connection, snapshot: &str, open: Option<&Manifest>) -> rusqlite::Result<()> {
    let known = "INSERT OR IGNORE INTO templates (snapshot, manifest)
        SELECT id, manifest FROM snapshots WHERE id = ?1 AND status = 'ready'";
    c.execute(known, [snapshot])?;
    let Some(manifest) = open else { return Ok(()) };
    let Ok(text) = serde_json::to_string(manifest) else { return Ok(()) };
    let add = "INSERT OR IGNORE INTO templates (snapshot, manifest) VALUES (?1, ?2)";
    if c.execute(add, params![snapshot, text])? == 1 {
        name_content(c, snapshot, manifest)?;
    }
    Ok(())
}

/// Notes under `owner` what a manifest names.
pub(crate) fn name_content(c: &Connection, owner: &str, manifest: &Manifest) -> rusqlite::Result<()> {
    let mut insert = c.prepare_cached(
        "INSERT OR IGNORE INTO snapshot_content (snapshot, kind, hash) VALUES (?1, ?2, ?3)",
    )?;
    insert.execute([owner, "image", &manifest.image.hash])?;
    for layer in manifest.layers() {
        insert.execute([owner, "layer", &layer.hash])?;
    }
    Ok(())
}
