//! Opening a store, and what all its parts share.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;

use crate::bundle::{Exports, Imports};
use crate::content::{Content, forget};
use crate::db::Db;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::open::OpenSnapshots;

/// The store of one controller. Cheap to clone; every method blocks.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    root: PathBuf,
    pub(crate) db: Db,
    pub(crate) open: OpenSnapshots,
    pub(crate) exports: Exports,
    pub(crate) imports: Imports,
    /// Held while content gets or loses its last name, so that no two changes of that kind overlap:
    /// content must not be removed between being found and being named by a row.
    content: Mutex<()>,
    /// Content without a name that an open snapshot still has.
    pub(crate) deferred: Mutex<Vec<Content>>,
    /// Drafts that are gone but whose rows could not be removed, since the disk was full.
    abandoned: Mutex<Vec<String>>,
    /// Locked as long as the store is open.
    _lock: File,
}

/// How long a lock that is held is tried again: a program that was just started has, until it is what it is to
/// be, all descriptors of the one that started it, so a store seems open for an instant after it was closed.
const LOCK_WITHIN: Duration = Duration::from_secs(2);
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// The folders of a store.
const FOLDERS: &[&str] = &["images", "kernels", "initrd", "layers", "snapshots", "imports", "run", "staging"];

impl Store {
    /// Opens the store at `root`, creating it where there is none. Only one process can have it open.
    ///
    /// Files that no row names (a crash left them) are removed.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        disk::create_folder(root)?;
        // Once and for all: what the kernel says of mapped files, and what outlives this process, is absolute.
        let root = &root.canonicalize().map_err(|e| StoreError::io("resolve", root, e))?;
        let lock = lock(root)?;
        for folder in FOLDERS {
            disk::create_folder(&root.join(folder))?;
        }
        let db = Db::open(&root.join("forkd.db"))?;
        let shared = Shared {
            root: root.to_owned(),
            db,
            open: OpenSnapshots::default(),
            exports: Exports::default(),
            imports: Imports::default(),
            content: Mutex::new(()),
            deferred: Mutex::new(Vec::new()),
            abandoned: Mutex::new(Vec::new()),
            _lock: lock,
        };
        let store = Self { shared: Arc::new(shared) };
        store.sweep()?;
        Ok(store)
    }

    /// The folder that everything lies in: absolute, without symbolic links.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        self.shared.root.join(name)
    }

    pub(crate) fn content_lock(&self) -> MutexGuard<'_, ()> {
        self.shared.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn abandoned(&self) -> MutexGuard<'_, Vec<String>> {
        self.shared.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A folder for a draft. It is removed when dropped, or when the store opens after a crash.
    pub(crate) fn staging(&self) -> Result<tempfile::TempDir, StoreError> {
        let folder = self.folder("staging");
        tempfile::tempdir_in(&folder).map_err(|e| StoreError::io("create a folder in", &folder, e))
    }

    /// Removes what a crash left. The lock is held and nothing has begun yet, so whatever is reserved or
    /// staged belongs to nobody.
    fn sweep(&self) -> Result<(), StoreError> {
        // The largest first: after a crash on a full disk it makes the room for what follows.
        self.sweep_folder("staging", &HashSet::new(), |_| None)?;
        fault::at!("store::sweep::staging_swept");
        self.sweep_imports()?;
        self.sweep_settings()?;
        self.shared.db.commit_removal(|t| {
            t.execute("DELETE FROM snapshots WHERE status = 'writing'", [])?;
            forget(t)
        })?;
        fault::at!("store::sweep::drafts_forgotten");
        let images = self.names("SELECT hash FROM images UNION SELECT hash FROM snapshot_content")?;
        self.sweep_folder("images", &images, |name| name.strip_suffix(".ext4"))?;
        let layers = self.names("SELECT hash FROM snapshot_content WHERE kind = 'layer'")?;
        self.sweep_folder("layers", &layers, |name| Some(name.strip_suffix(".extents").unwrap_or(name)))?;
        let kernels = self.names("SELECT id FROM kernels")?;
        self.sweep_folder("kernels", &kernels, whole)?;
        self.sweep_folder("initrd", &kernels, |name| name.split_once('-').map(|(kernel, _)| kernel))?;
        // Not "run": a monitor may live in a folder that has no row, and only the engine can end it.
        let snapshots = self.names(
            "SELECT id FROM snapshots
             UNION SELECT snapshot_id FROM sandboxes WHERE state = 'paused' AND snapshot_id IS NOT NULL",
        )?;
        self.sweep_folder("snapshots", &snapshots, whole)
    }

    fn names(&self, query: &str) -> Result<HashSet<String>, StoreError> {
        self.shared.db.run(|c| c.prepare(query)?.query_map([], |row| row.get(0))?.collect())
    }

    /// Removes the entries whose key is not wanted; `None` is never wanted.
    fn sweep_folder(
        &self,
        folder: &str,
        wanted: &HashSet<String>,
        key: impl Fn(&str) -> Option<&str>,
    ) -> Result<(), StoreError> {
        let folder = self.folder(folder);
        for entry in fs::read_dir(&folder).map_err(|e| StoreError::io("list", &folder, e))? {
            let entry = entry.map_err(|e| StoreError::io("list", &folder, e))?;
            let name = entry.file_name();
            if name.to_str().and_then(&key).is_some_and(|key| wanted.contains(key)) {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => disk::remove_folder(&entry.path())?,
                _ => disk::remove_file(&entry.path())?,
            }
            fault::at!("store::sweep::entry_removed");
        }
        Ok(())
    }
}

/// The name of an entry is its key.
fn whole(name: &str) -> Option<&str> {
    Some(name)
}

/// Takes the lock of a store, or says who has it.
fn lock(root: &Path) -> Result<File, StoreError> {
    let path = root.join("lock");
    let failed = |e: std::io::Error| StoreError::io("lock", &path, e);
    let mut file =
        File::options().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
    let began = Instant::now();
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < LOCK_WITHIN => thread::sleep(LOCK_AGAIN),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = (&file).take(64).read_to_string(&mut holder);
                return Err(StoreError::Locked { root: root.to_owned(), holder: holder.trim().to_owned() });
            }
            Err(e) => return Err(failed(e.into())),
        }
    }
    // For people; the lock itself is the kernel's.
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "pid {}", std::process::id()))
        .map_err(failed)?;
    Ok(file)
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|since| since.as_secs()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_absolute_however_it_was_named() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let store = Store::open(&link.join("../link/store")).unwrap();
        assert_eq!(store.root(), real.canonicalize().unwrap().join("store"));
    }

    #[test]
    fn a_lock_that_is_let_go_in_a_moment_is_waited_for_and_one_that_stays_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let first = Store::open(folder.path()).unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StoreError::Locked { .. })));
        let root = folder.path().to_owned();
        let second = thread::spawn(move || Store::open(&root).map(drop));
        // Whether the other one asks before or after this, it gets the store.
        drop(first);
        second.join().unwrap().unwrap();
    }
}
