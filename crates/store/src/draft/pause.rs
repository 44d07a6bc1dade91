//! Taking a sandbox to the disk: a snapshot that no tag names but the sandbox's row.
//!
//! It lies on the layers that the sandbox was forked from, its *floor*. All that the sandbox has changed since becomes
//! one layer of memory and one of its disk, also where it was paused before: so a sandbox that is paused again and
//! again has no longer chain than one that was paused once.

use std::path::Path;

use forkd_protocol::names::SandboxId;
use rusqlite::params;

use super::compact::Keep;
use super::examine::Examined;
use super::{DISK, Draft, DraftFiles};
use crate::chain::{NewLayer, Stack, name_content};
use crate::content::{Content, forget};
use crate::disk;
use crate::error::StoreError;
use crate::extents;
use crate::fault;
use crate::manifest::LayerRef;
use crate::records::{SandboxRow, SnapshotMeta};
use crate::store::Store;

/// How many layers lie below what a sandbox has changed itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Floor {
    /// Of memory.
    pub memory: usize,
    /// Of its disk.
    pub disk: usize,
}

/// A sandbox being paused. Dropping it changes nothing.
#[derive(Debug)]
pub struct PauseDraft {
    draft: Draft,
    files: DraftFiles,
    sandbox: SandboxId,
}

impl Store {
    /// Opens the files that the monitor of a sandbox writes when it is paused.
    pub fn begin_pause(&self, sandbox: &SandboxId) -> Result<PauseDraft, StoreError> {
        let (draft, files) = Draft::new(self)?;
        Ok(PauseDraft { draft, files, sandbox: sandbox.clone() })
    }
}

impl PauseDraft {
    /// The files for the monitor.
    pub fn outputs(&mut self) -> &DraftFiles {
        &self.files
    }

    /// Takes the top of disk 0 as it is now; `path` must lie in the store. It stays the sandbox's: what is kept is a
    /// copy.
    pub fn link_disk_top(&mut self, path: &Path) -> Result<(), StoreError> {
        std::fs::hard_link(path, self.draft.path(DISK)).map_err(|e| StoreError::io("link", path, e))?;
        self.draft.has_disk = true;
        Ok(())
    }

    /// Checks and hashes everything, and commits: from here on the sandbox is paused, as `row` says, and what it was
    /// restored from is no longer needed for it. Whatever fails before leaves it as it was.
    ///
    /// # Errors
    /// What a monitor wrote is refused, the disk is full, or the sandbox was removed meanwhile.
    pub fn park(self, meta: SnapshotMeta, floor: Floor, row: &SandboxRow) -> Result<(), StoreError> {
        let Self { draft, files, sandbox } = self;
        drop(files);
        let mut examined = draft.examine(meta)?;
        fault::at!("store::pause::examined");
        draft.fold(&mut examined, floor)?;
        fault::at!("store::pause::folded");
        let store = &draft.store;
        let (guard, doomed) = draft.put(&examined, |id, text| {
            let db = &store.shared.db;
            db.commit(|t| {
                let failed = |e| db.failed(e);
                let template = "INSERT INTO templates (snapshot, manifest) VALUES (?1, ?2)";
                t.execute(template, params![id, text]).map_err(failed)?;
                name_content(t, id, &examined.manifest).map_err(failed)?;
                let update =
                    "UPDATE sandboxes SET state = ?1, info_json = ?2, snapshot_id = ?3 WHERE id = ?4";
                let sandbox = sandbox.as_str();
                if t.execute(update, params![row.state, row.info_json, id, sandbox]).map_err(failed)? != 1 {
                    return Err(StoreError::not_found("sandbox", sandbox));
                }
                let frozen = frozen_of(t, sandbox).map_err(failed)?;
                Ok((forget(t).map_err(failed)?, frozen))
            })
        })?;
        // It is paused; what this leaves is swept when the store opens.
        let _ = store.drop_content(doomed.0.into_iter().chain(doomed.1));
        fault::at!("store::pause::forgotten");
        drop(guard);
        Ok(())
    }
}

/// Forgets the frozen tops of a sandbox, and says which they were.
fn frozen_of(c: &rusqlite::Connection, sandbox: &str) -> rusqlite::Result<Vec<Content>> {
    let of = "FROM snapshot_content WHERE snapshot = ?1";
    let tops = c
        .prepare(&format!("SELECT hash {of}"))?
        .query_map([sandbox], |row| Ok(Content::Layer(row.get(0)?)))?
        .collect::<rusqlite::Result<_>>()?;
    c.execute(&format!("DELETE {of}"), [sandbox])?;
    c.execute("DELETE FROM frozen_tops WHERE sandbox = ?1", [sandbox])?;
    Ok(tops)
}

impl Draft {
    /// Makes one layer of all that lie on the floor.
    fn fold(&self, examined: &mut Examined, floor: Floor) -> Result<(), StoreError> {
        let Examined { manifest, memory, disk, .. } = examined;
        self.fold_one("memory.folded", &mut manifest.memory, memory, floor.memory)?;
        self.fold_one("disk.folded", &mut manifest.disk, disk, floor.disk)
    }

    fn fold_one(
        &self,
        name: &str,
        layers: &mut Vec<LayerRef>,
        new: &mut Option<NewLayer>,
        floor: usize,
    ) -> Result<(), StoreError> {
        let own = layers.split_off(floor.min(layers.len()));
        if own.len() < 2 {
            layers.extend(own);
            return Ok(());
        }
        let stored = &own[..own.len() - usize::from(new.is_some())];
        let mut stack = self.store.listed(stored)?;
        if let Some(new) = new.as_ref() {
            push(&mut stack, new)?;
        }
        // Every page that a layer lists is kept: a page of zeroes hides the one below.
        let folded = self.merge(name, &stack, &own, Keep::Listed)?;
        layers.push(folded.layer.clone());
        *new = Some(folded);
        Ok(())
    }
}

/// Lays a layer that is still a draft over others.
pub(super) fn push(stack: &mut Stack, new: &NewLayer) -> Result<(), StoreError> {
    let runs = extents::read(&disk::open(&new.table)?, &new.table, new.layer.size_bytes)?;
    stack.push(disk::open(&new.data)?, new.data.clone(), &runs);
    Ok(())
}
