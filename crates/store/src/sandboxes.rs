//! Sandboxes: rows that outlive the controller, and a folder for each.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use forkd_protocol::names::SandboxId;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::chain::pin_template;
use crate::content::{forget, forget_templates};
use crate::db::{from_sql, to_sql};
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::records::SandboxRow;
use crate::store::Store;

const COLUMNS: &str =
    "SELECT id, snapshot_tag, pid, pid_start_ticks, state, created_at, memory_limit_mib, ended,
    branch_count, info_json, snapshot_id FROM sandboxes";

impl Store {
    /// Writes the row of a sandbox, replacing an older one.
    pub fn put_sandbox(&self, row: &SandboxRow) -> Result<(), StoreError> {
        self.put_sandboxes(std::slice::from_ref(row))
    }

    /// Writes the rows of sandboxes that belong together: all of them or none. What their snapshots consist of
    /// stays in the store from now on until their rows are removed.
    pub fn put_sandboxes(&self, rows: &[SandboxRow]) -> Result<(), StoreError> {
        // So that nothing is removed between being found and being named.
        let _guard = self.content_lock();
        let snapshots: BTreeSet<&str> = rows.iter().filter_map(|row| row.snapshot_id.as_deref()).collect();
        let snapshots: Vec<_> = snapshots.into_iter().map(|id| (id, self.shared.open.live(id))).collect();
        self.shared.db.run(|c| {
            let all = c.unchecked_transaction()?;
            for (id, open) in &snapshots {
                pin_template(&all, id, open.as_ref().map(|open| &open.record.manifest))?;
            }
            rows.iter().try_for_each(|row| put(&all, row))?;
            fault::at!("store::sandboxes::pinned");
            all.commit()
        })
    }

    /// All rows, oldest first.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRow>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare_cached(&format!("{COLUMNS} ORDER BY created_at, id"))?
                .query_map([], sandbox_of)?
                .collect()
        })
    }

    /// One row.
    pub fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRow>, StoreError> {
        let query = format!("{COLUMNS} WHERE id = ?1");
        self.shared.db.run(|c| c.prepare_cached(&query)?.query_row([id.as_str()], sandbox_of).optional())
    }

    /// Notes that one more snapshot was taken of a sandbox.
    pub fn count_branch(&self, id: &SandboxId) -> Result<(), StoreError> {
        let update = "UPDATE sandboxes SET branch_count = branch_count + 1 WHERE id = ?1";
        self.shared.db.run(|c| c.execute(update, [id.as_str()]).map(drop))
    }

    /// Forgets a sandbox, and what only it kept in the store; one that is not known is fine.
    pub fn remove_sandbox(&self, id: &SandboxId) -> Result<(), StoreError> {
        let _guard = self.content_lock();
        let delete = "DELETE FROM sandboxes WHERE id = ?1";
        let db = &self.shared.db;
        if !self.keeps_content(id.as_str())? {
            // No file goes with it, so it does not matter whether the row comes back with the power.
            return db.run(|c| {
                let all = c.unchecked_transaction()?;
                all.execute(delete, [id.as_str()])?;
                forget_templates(&all)?;
                all.commit()
            });
        }
        let folder = self.paused_folder(id)?;
        let doomed = db.commit_removal(|t| {
            t.execute(delete, [id.as_str()])?;
            forget(t)
        })?;
        fault::at!("store::sandboxes::row_removed");
        if let Some(snapshot) = folder {
            disk::remove_folder(&self.snapshot_folder(&snapshot))?;
        }
        fault::at!("store::sandboxes::forgotten");
        self.drop_content(doomed)
    }

    /// Where the files of a sandbox lie.
    pub fn run_dir(&self, id: &SandboxId) -> PathBuf {
        self.folder("run").join(id.as_str())
    }

    /// Makes the folder of a sandbox, mode 0700. It stays until it is removed: a folder without a row may be
    /// that of a monitor which still runs.
    pub fn create_run_dir(&self, id: &SandboxId) -> Result<PathBuf, StoreError> {
        let path = self.run_dir(id);
        DirBuilder::new().mode(0o700).create(&path).map_err(|e| StoreError::io("create", &path, e))?;
        Ok(path)
    }

    /// Gives a folder to another, which must have none yet. What listens in it is reached at its new path.
    pub fn rename_run_dir(&self, from: &SandboxId, to: &SandboxId) -> Result<(), StoreError> {
        disk::rename(&self.run_dir(from), &self.run_dir(to))
    }

    /// Removes the folder of a sandbox; one that is not there is fine.
    pub fn remove_run_dir(&self, id: &SandboxId) -> Result<(), StoreError> {
        disk::remove_folder(&self.run_dir(id))
    }
}

fn put(c: &Connection, row: &SandboxRow) -> rusqlite::Result<()> {
    c.prepare_cached(
        "INSERT OR REPLACE INTO sandboxes (id, snapshot_tag, pid, pid_start_ticks, state, created_at,
            memory_limit_mib, ended, branch_count, info_json, snapshot_id)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![
        row.id.as_str(),
        row.snapshot_tag,
        row.pid,
        row.pid_start_ticks.map(to_sql),
        row.state,
        to_sql(row.created_at_unix),
        row.memory_limit_mib.map(to_sql),
        row.ended,
        to_sql(row.branch_count),
        row.info_json,
        row.snapshot_id,
    ])?;
    Ok(())
}

fn sandbox_of(row: &Row<'_>) -> rusqlite::Result<SandboxRow> {
    let id: String = row.get(0)?;
    let unreadable =
        |e| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(e));
    Ok(SandboxRow {
        id: id.parse().map_err(unreadable)?,
        snapshot_tag: row.get(1)?,
        pid: row.get(2)?,
        pid_start_ticks: row.get::<_, Option<i64>>(3)?.map(from_sql),
        state: row.get(4)?,
        created_at_unix: from_sql(row.get(5)?),
        memory_limit_mib: row.get::<_, Option<i64>>(6)?.map(from_sql),
        ended: row.get(7)?,
        branch_count: from_sql(row.get(8)?),
        info_json: row.get(9)?,
        snapshot_id: row.get(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_folders_outlive_the_controller() {
        let folder = tempfile::tempdir().unwrap();
        let row = SandboxRow {
            id: "sb-1".parse().unwrap(),
            snapshot_tag: "t".to_owned(),
            snapshot_id: None,
            pid: Some(4_000_000_000),
            pid_start_ticks: Some(77),
            state: "running".to_owned(),
            created_at_unix: 5,
            memory_limit_mib: None,
            ended: None,
            branch_count: 3,
            info_json: "{}".to_owned(),
        };
        let orphan = "sb-2".parse().unwrap();
        {
            let store = Store::open(folder.path()).unwrap();
            store.put_sandbox(&row).unwrap();
            store.put_sandboxes(&[row.clone(), row.clone()]).unwrap();
            store.create_run_dir(&row.id).unwrap();
            store.create_run_dir(&orphan).unwrap();
        }
        let store = Store::open(folder.path()).unwrap();
        assert_eq!(store.sandboxes().unwrap(), std::slice::from_ref(&row));
        assert!(store.run_dir(&row.id).exists() && store.run_dir(&orphan).exists());
        store.remove_sandbox(&row.id).unwrap();
        store.remove_sandbox(&row.id).unwrap();
        store.remove_run_dir(&row.id).unwrap();
        store.remove_run_dir(&row.id).unwrap();
        assert!(store.sandboxes().unwrap().is_empty());
    }
}
