//! The registry: one SQLite file that says what exists.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction};
use rustix::fs::FallocateFlags;

use crate::error::StoreError;

/// Each entry takes the registry one version further. Entries are only ever added.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE images (
        name TEXT PRIMARY KEY, hash TEXT NOT NULL, size_bytes INTEGER NOT NULL,
        origin TEXT NOT NULL, created_at INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE kernels (
        position INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, id TEXT NOT NULL,
        hash TEXT NOT NULL, created_at INTEGER NOT NULL
    ) STRICT;
    -- A tag is taken from the moment its row is there; what it names exists once the row is 'ready'.
    CREATE TABLE snapshots (
        tag TEXT PRIMARY KEY, draft TEXT NOT NULL, status TEXT NOT NULL,
        id TEXT UNIQUE, manifest TEXT, created_at INTEGER NOT NULL
    ) STRICT;
    -- Which content a snapshot needs: kind is 'image' or 'layer'.
    CREATE TABLE snapshot_content (
        snapshot TEXT NOT NULL, kind TEXT NOT NULL, hash TEXT NOT NULL,
        PRIMARY KEY (snapshot, kind, hash)
    ) STRICT;
    CREATE INDEX content_by_hash ON snapshot_content (hash);
    CREATE TABLE sandboxes (
        id TEXT PRIMARY KEY, snapshot_tag TEXT NOT NULL, pid INTEGER, pid_start_ticks INTEGER,
        state TEXT NOT NULL, created_at INTEGER NOT NULL, memory_limit_mib INTEGER, ended TEXT,
        branch_count INTEGER NOT NULL, info_json TEXT NOT NULL
    ) STRICT;
",
    "
    ALTER TABLE sandboxes ADD COLUMN snapshot_id TEXT;
    CREATE INDEX sandboxes_by_snapshot ON sandboxes (snapshot_id);
    -- What running sandboxes were restored from. It keeps that snapshot's content also when its row is gone.
    CREATE TABLE templates (snapshot TEXT PRIMARY KEY, manifest TEXT NOT NULL) STRICT;
    -- Disk tops that were frozen under a running sandbox, from below.
    CREATE TABLE frozen_tops (
        sandbox TEXT NOT NULL, position INTEGER NOT NULL, layer TEXT NOT NULL, PRIMARY KEY (sandbox, position)
    ) STRICT;
",
    "
    -- Apart from the rows of sandboxes, which are written anew by whoever moves one on.
    CREATE TABLE sandbox_settings (sandbox TEXT PRIMARY KEY, settings TEXT NOT NULL) STRICT;
    CREATE TRIGGER settings_go_with_their_sandbox AFTER DELETE ON sandboxes
    BEGIN DELETE FROM sandbox_settings WHERE sandbox = OLD.id; END;
",
    include_str!("service.sql"),
    include_str!("service/keys.sql"),
    include_str!("service/workspaces.sql"),
    include_str!("service/events.sql"),
];

/// Space set aside, so that a full disk does not keep anybody from removing things.
const RESERVE_BYTES: u64 = 1 << 20;

/// The open registry.
#[derive(Debug)]
pub(crate) struct Db {
    path: PathBuf,
    reserve: PathBuf,
    connection: Mutex<Connection>,
}

impl Db {
    /// Opens the registry and brings it to the newest version.
    pub(crate) fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = |e| StoreError::database(path, e);
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(10)).map_err(failed)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(failed)?;
        migrate(&mut connection, path)?;
        // A sandbox row may be lost with the power: its sandbox is gone then, too.
        connection.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        let reserve = path.with_extension("reserve");
        let db = Self { path: path.to_owned(), reserve, connection: Mutex::new(connection) };
        db.refill_reserve();
        Ok(db)
    }

    /// Where this fails the disk is nearly full, and the reserve is made again when there is room.
    fn refill_reserve(&self) {
        let _ = File::create(&self.reserve)
            .and_then(|file| Ok(rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, RESERVE_BYTES)?));
    }

    /// Runs statements.
    pub(crate) fn run<T>(
        &self,
        action: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        action(&self.lock()).map_err(|e| StoreError::database(&self.path, e))
    }

    /// Runs statements in one transaction that is on the disk when this returns: what follows may remove
    /// files that the row named before.
    pub(crate) fn commit<T>(
        &self,
        action: impl FnOnce(&Transaction<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let failed = |e| StoreError::database(&self.path, e);
        let mut connection = self.lock();
        connection.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        let transaction = connection.transaction().map_err(failed)?;
        let result = action(&transaction);
        // Dropping the transaction where the action failed rolls it back.
        let result = result.and_then(|value| transaction.commit().map(|()| value).map_err(failed));
        // It is committed or it is not; where this fails the next ones are only slower.
        let _ = connection.pragma_update(None, "synchronous", "NORMAL");
        result
    }

    /// Like [`Db::commit`], for what gives space back: it works on a full disk too.
    pub(crate) fn commit_removal<T>(
        &self,
        action: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let attempt = || self.commit(|t| action(t).map_err(|e| self.failed(e)));
        let first = attempt();
        if !matches!(&first, Err(StoreError::Full { .. })) {
            return first;
        }
        let _ = std::fs::remove_file(&self.reserve);
        let second = attempt();
        self.refill_reserve();
        second
    }

    /// For errors inside [`Db::commit`].
    pub(crate) fn failed(&self, error: rusqlite::Error) -> StoreError {
        StoreError::database(&self.path, error)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // Every change is a transaction, so a panic elsewhere left nothing half done.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn migrate(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |e| StoreError::database(path, e);
    let version: i64 =
        connection.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(failed)?;
    let known = MIGRATIONS.len();
    let done =
        usize::try_from(version).ok().filter(|done| *done <= known).ok_or_else(|| StoreError::Format {
            path: path.to_owned(),
            found: version.to_string(),
            known: u32::try_from(known).unwrap_or(u32::MAX),
        })?;
    for (version, migration) in (1i64..).zip(MIGRATIONS).skip(done) {
        let transaction = connection.transaction().map_err(failed)?;
        transaction.execute_batch(migration).map_err(failed)?;
        transaction.pragma_update(None, "user_version", version).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(())
}

/// SQLite keeps signed numbers.
pub(crate) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The way back.
pub(crate) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_twice_keeps_rows_and_a_newer_registry_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forkd.db");
        for _ in 0..2 {
            let db = Db::open(&path).unwrap();
            db.run(|c| c.execute("INSERT OR IGNORE INTO kernels VALUES (1, 'k', 'i', 'h', 0)", [])).unwrap();
            let count: i64 =
                db.run(|c| c.query_row("SELECT count(*) FROM kernels", [], |r| r.get(0))).unwrap();
            assert_eq!(count, 1);
        }
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(Db::open(&path), Err(StoreError::Format { .. })));
    }

    #[test]
    fn a_failed_commit_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&folder.path().join("forkd.db")).unwrap();
        let failed: Result<(), _> = db.commit(|t| {
            t.execute("INSERT INTO kernels VALUES (1, 'k', 'i', 'h', 0)", []).map_err(|e| db.failed(e))?;
            Err(StoreError::TagTaken { tag: "t".to_owned() })
        });
        assert!(failed.is_err());
        let count: i64 = db.run(|c| c.query_row("SELECT count(*) FROM kernels", [], |r| r.get(0))).unwrap();
        assert_eq!(count, 0);
    }
}
