//! `snapshots/<id>/hot`: which pages every child of a snapshot changes as soon as it runs.
//!
//! A hint, told by the monitor of one child. It is no part of the snapshot: where it is missing or damaged, the next
//! child that answers tells it again. No monitor has the file open for writing: what one says is read, checked,
//! bounded and written anew.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use forkd_protocol::control::MAX_HOT_PAGES;
use forkd_protocol::names::Tag;

use crate::disk;
use crate::error::StoreError;
use crate::extents::{self, Extent};
use crate::fault;
use crate::open::OpenSnapshot;
use crate::records::SnapshotRecord;
use crate::store::Store;

/// The table's name.
const HOT: &str = "hot";

/// What is known of an open snapshot's hot pages.
#[derive(Debug, Default)]
pub(crate) struct Hot {
    table: OnceLock<OwnedFd>,
    /// Somebody finds out.
    claimed: AtomicBool,
}

impl Hot {
    pub(crate) fn known(table: Option<OwnedFd>) -> Self {
        let hot = Self::default();
        if let Some(table) = table {
            let _ = hot.table.set(table);
        }
        hot
    }
}

impl OpenSnapshot {
    /// The table of hot pages, where it is known.
    pub fn hot(&self) -> Option<BorrowedFd<'_>> {
        self.hot.table.get().map(AsFd::as_fd)
    }

    /// Whether the caller is to find out which pages are hot: true for one, where that is not known.
    pub fn claim_hot(&self) -> bool {
        self.hot().is_none() && !self.hot.claimed.swap(true, Ordering::Relaxed)
    }

    /// Who was to find out did not: another may try.
    pub fn disclaim_hot(&self) {
        self.hot.claimed.store(false, Ordering::Relaxed);
    }
}

impl Store {
    /// Keeps the table of hot pages that a monitor wrote into `told`, for all later children of `open`.
    ///
    /// # Errors
    /// It is no table, or lists more than the start of a machine; the snapshot was removed meanwhile; it cannot be
    /// written.
    pub fn put_hot(&self, open: &OpenSnapshot, told: &File) -> Result<(), StoreError> {
        let home = self.hot_path(&open.record.id);
        let table = read(told, &home, &open.record)?;
        let staging = self.staging()?;
        let draft = staging.path().join("hot");
        let mut file = disk::create_new(&draft)?;
        file.write_all(&extents::to_bytes(&table)).map_err(|e| StoreError::io("write", &draft, e))?;
        disk::seal(&draft)?;
        fault::at!("store::hot::sealed");
        let tag: Tag = open.record.info.tag.parse().map_err(|_| gone(open))?;
        // Neither row nor folder can go away while the lock is held.
        let _guard = self.content_lock();
        if self.snapshot(&tag)?.id != open.record.id {
            return Err(gone(open));
        }
        disk::rename(&draft, &home)?;
        fault::at!("store::hot::renamed");
        // Whoever was first is as good.
        let _ = open.hot.table.set(disk::open(&home)?.into());
        Ok(())
    }

    /// What is known of a snapshot that is being opened. A table that is no good is as good as none.
    pub(crate) fn hot_of(&self, record: &SnapshotRecord) -> Option<OwnedFd> {
        let path = self.hot_path(&record.id);
        let file = disk::open(&path).ok()?;
        read(&file, &path, record).ok()?;
        Some(file.into())
    }

    /// Has the snapshot that is made in `folder` begin with what is known of one that its machine comes from: what a guest
    /// does as soon as it runs is the same. Where nothing is known, its first child tells.
    pub(crate) fn inherit_hot(&self, from: &str, folder: &Path) {
        let _ = std::fs::hard_link(self.hot_path(from), folder.join(HOT));
    }

    fn hot_path(&self, id: &str) -> PathBuf {
        self.snapshot_folder(id).join(HOT)
    }
}

fn read(file: &File, path: &Path, record: &SnapshotRecord) -> Result<Vec<Extent>, StoreError> {
    let memory = record.manifest.memory.first().map_or(0, |layer| layer.size_bytes);
    let table = extents::read(file, path, memory)?;
    let pages: u64 = table.iter().map(|extent| extent.pages).sum();
    if pages > MAX_HOT_PAGES {
        let reason = format!("it lists {pages} hot pages; {MAX_HOT_PAGES} are taken");
        return Err(StoreError::BadLayer { path: path.to_owned(), reason });
    }
    Ok(table)
}

fn gone(open: &OpenSnapshot) -> StoreError {
    StoreError::NotFound { kind: "snapshot", name: open.record.info.tag.clone() }
}
