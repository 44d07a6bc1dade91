//! Sandboxes that are paused: what a row says of them, and what they are continued from.
//!
//! A paused sandbox's row names a snapshot that has no tag (`draft/pause.rs`). Its folder, with machine state and view,
//! is there as long as the row says `paused`; its layers stay as long as the row names it, since the sandbox lies on
//! them when it is continued.

use std::sync::Once;

use forkd_protocol::names::SandboxId;
use rusqlite::{OptionalExtension, params};

use crate::chain::Template;
use crate::db::to_sql;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::hot::Hot;
use crate::open::OpenSnapshot;
use crate::records::{SandboxRow, SnapshotRecord};
use crate::store::Store;

/// The state of a row whose sandbox is on the disk.
const PAUSED: &str = "paused";

impl Store {
    /// What a paused sandbox is continued from, opened.
    ///
    /// # Errors
    /// It is not paused, or its view is not to be had.
    pub fn open_paused(&self, sandbox: &SandboxId) -> Result<OpenSnapshot, StoreError> {
        let row = self.sandbox(sandbox)?.filter(|row| row.state == PAUSED);
        let record = row.map(|row| self.record_of(row)).transpose()?.flatten();
        let record = record.ok_or_else(|| StoreError::not_found("paused sandbox", sandbox.as_str()))?;
        self.look_after_view(&record)?;
        let files = self.open_files(&record)?;
        let disk_bytes = record.manifest.image.size_bytes;
        let state_format = self.state_format(&record.id);
        Ok(OpenSnapshot {
            record,
            files,
            disk_bytes,
            state_format,
            hot: Hot::default(),
            read_in: Once::new(),
        })
    }

    /// What all paused sandboxes are continued from. Each has the id of its sandbox in the place of a tag.
    pub(crate) fn paused(&self) -> Result<Vec<SnapshotRecord>, StoreError> {
        let rows = self.sandboxes()?.into_iter().filter(|row| row.state == PAUSED);
        let records: Result<Vec<_>, _> = rows.map(|row| self.record_of(row)).collect();
        Ok(records?.into_iter().flatten().collect())
    }

    fn record_of(&self, row: SandboxRow) -> Result<Option<SnapshotRecord>, StoreError> {
        let Some(Template { id, manifest, .. }) = self.template(&row.id)? else { return Ok(None) };
        let info = self.info(row.id.to_string(), &id, &manifest);
        Ok(Some(SnapshotRecord { info, id, manifest }))
    }

    /// Commits that a paused sandbox runs again, as its row says, and removes what nobody will continue again.
    ///
    /// # Errors
    /// It was removed meanwhile, or the registry failed: then it is paused still.
    pub fn put_resumed(&self, row: &SandboxRow) -> Result<(), StoreError> {
        let _guard = self.content_lock();
        let db = &self.shared.db;
        let update = "UPDATE sandboxes SET state = ?1, pid = ?2, pid_start_ticks = ?3, info_json = ?4
            WHERE id = ?5 AND state = ?6";
        let id = row.id.as_str();
        // On the disk when this returns: a workload that has run is never continued from before.
        db.commit(|t| {
            let ticks = row.pid_start_ticks.map(to_sql);
            let row = params![row.state, row.pid, ticks, row.info_json, id, PAUSED];
            match t.execute(update, row).map_err(|e| db.failed(e))? {
                1 => Ok(()),
                _ => Err(StoreError::not_found("paused sandbox", id)),
            }
        })?;
        fault::at!("store::pause::resumed");
        if let Some(snapshot) = &row.snapshot_id {
            // It runs; what this leaves is swept when the store opens.
            let _ = disk::remove_folder(&self.snapshot_folder(snapshot));
        }
        Ok(())
    }

    /// The snapshot whose folder a paused sandbox has; `None` for one that is not paused.
    pub(crate) fn paused_folder(&self, sandbox: &SandboxId) -> Result<Option<String>, StoreError> {
        let query = "SELECT snapshot_id FROM sandboxes WHERE id = ?1 AND state = ?2";
        let found = self.shared.db.run(|c| {
            c.query_row(query, [sandbox.as_str(), PAUSED], |row| row.get::<_, Option<String>>(0)).optional()
        })?;
        Ok(found.flatten())
    }

    /// Whether a paused sandbox is continued from the snapshot of this id.
    pub(crate) fn is_paused(&self, snapshot: &str) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM sandboxes WHERE snapshot_id = ?1 AND state = ?2)";
        self.shared.db.run(|c| c.query_row(query, [snapshot, PAUSED], |row| row.get(0)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::chain::Removal;
    use crate::draft::Floor;
    use crate::extents::PAGE;
    use crate::testing::{image, pause, resume, sandbox, snapshot, tag, top};

    const FLOOR: Floor = Floor { memory: 1, disk: 0 };

    fn page(store: &Store, id: &SandboxId, number: u64) -> u8 {
        let manifest = store.template(id).unwrap().unwrap().manifest;
        let mut bytes = vec![1; PAGE as usize];
        store.memory_stack(&manifest.memory).unwrap().read(number, &mut bytes).unwrap();
        bytes[0]
    }

    fn entries(store: &Store, folder: &str) -> usize {
        fs::read_dir(store.folder(folder)).unwrap().count()
    }

    #[test]
    fn paused_again_and_again_it_has_one_layer_of_its_own_and_in_the_end_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path()).unwrap();
        let a = snapshot(&store, &image(&store), "a", None, &[(1, 1), (2, 1)]);
        let id: SandboxId = "sb-1".parse().unwrap();
        store.put_sandbox(&sandbox("sb-1", &a)).unwrap();
        let (data, table) = top(&store, &[(3, 1)]);
        store.adopt_layer(&id, &data, &table, 64 * PAGE).unwrap();

        pause(&store, "sb-1", FLOOR, (&[(2, 5), (9, 6)], &[(3, 2), (4, 2)])).unwrap();
        let paused = store.template(&id).unwrap().unwrap();
        assert_eq!((paused.manifest.memory.len(), paused.manifest.disk.len()), (2, 1));
        assert!(paused.frozen.is_empty());
        // Whatever is done to the tag below, and whoever opens the store.
        store.remove_snapshot(&tag("a"), Removal::Alone).unwrap();
        drop(store);
        store = Store::open(folder.path()).unwrap();
        assert!(store.gc(false).unwrap().items.is_empty());
        assert_eq!([1, 2, 9].map(|n| page(&store, &id, n)), [1, 5, 6]);
        assert!(store.open_paused(&id).is_ok());
        let checked = store.verify(None, false).unwrap();
        assert_eq!((checked.snapshots, checked.damage.len()), (1, 0));

        resume(&store, "sb-1");
        assert_eq!(entries(&store, "snapshots"), 0);
        assert!(store.open_paused(&id).is_err() && store.gc(false).unwrap().items.is_empty());
        pause(&store, "sb-1", FLOOR, (&[(1, 7), (9, 0)], &[(5, 3)])).unwrap();
        let again = store.template(&id).unwrap().unwrap().manifest;
        assert_eq!((again.memory.len(), again.disk.len()), (2, 1));
        assert_eq!([1, 2, 9].map(|n| page(&store, &id, n)), [7, 5, 0]);
        assert_eq!((again.memory[1].data_bytes, again.disk[0].data_bytes), (3 * PAGE, 3 * PAGE));
        assert!(store.open_paused(&id).is_ok());
        // Base, own memory, own disk; each with its table.
        assert_eq!(entries(&store, "layers"), 6);

        store.remove_sandbox(&id).unwrap();
        assert_eq!(["layers", "snapshots", "staging"].map(|f| entries(&store, f)), [0, 0, 0]);
    }

    #[test]
    fn a_pause_that_fails_leaves_the_sandbox_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let a = snapshot(&store, &image(&store), "a", None, &[(1, 1)]);
        let id: SandboxId = "sb-1".parse().unwrap();
        store.put_sandbox(&sandbox("sb-1", &a)).unwrap();
        let (before, row) = (store.template(&id).unwrap(), store.sandbox(&id).unwrap());
        // A block behind the end of the disk.
        let refused = pause(&store, "sb-1", FLOOR, (&[(2, 1)], &[(70, 1)])).unwrap_err();
        assert!(matches!(refused, StoreError::BadLayer { .. }), "{refused}");
        drop(store.begin_pause(&id).unwrap());
        assert_eq!((store.template(&id).unwrap(), store.sandbox(&id).unwrap()), (before, row));
        assert_eq!(["layers", "snapshots", "staging"].map(|f| entries(&store, f)), [2, 1, 0]);
    }

    #[test]
    fn what_a_crash_left_of_a_continuation_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let a = snapshot(&store, &image(&store), "a", None, &[(1, 1)]);
        let id: SandboxId = "sb-1".parse().unwrap();
        store.put_sandbox(&sandbox("sb-1", &a)).unwrap();
        pause(&store, "sb-1", FLOOR, (&[(2, 5)], &[])).unwrap();
        let own = store.template(&id).unwrap().unwrap().id;
        resume(&store, "sb-1");
        fs::create_dir(store.snapshot_folder(&own)).unwrap();
        drop(store);
        let store = Store::open(folder.path()).unwrap();
        assert!(!store.snapshot_folder(&own).exists());
        assert_eq!(page(&store, &id, 2), 5);
    }
}
