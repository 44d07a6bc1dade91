//! Kernels: an image to boot and the archive of its modules.

use std::io::Read;
use std::path::PathBuf;

use forkd_protocol::names::KernelName;
use forkd_protocol::rest::KernelInfo;
use rusqlite::{OptionalExtension, Row, Transaction, params};

use crate::db::{from_sql, to_sql};
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::records::KernelRecord;
use crate::store::{Store, now};

pub(crate) const MAX_VMLINUZ: u64 = 1 << 30;
pub(crate) const MAX_MODULES: u64 = 2 << 30;

const COLUMNS: &str = "SELECT name, id, hash, created_at FROM kernels";

impl Store {
    /// All kernels, newest first.
    pub fn kernels(&self) -> Result<Vec<KernelRecord>, StoreError> {
        self.shared.db.run(|c| {
            c.prepare_cached(&format!("{COLUMNS} ORDER BY position DESC"))?
                .query_map([], |row| self.kernel_of(row))?
                .collect()
        })
    }

    /// One kernel; the newest where no name is given.
    pub fn kernel(&self, name: Option<&KernelName>) -> Result<KernelRecord, StoreError> {
        let query = format!("{COLUMNS} WHERE name = coalesce(?1, name) ORDER BY position DESC LIMIT 1");
        let named = name.map(KernelName::as_str);
        self.shared
            .db
            .run(|c| c.query_row(&query, [named], |row| self.kernel_of(row)).optional())?
            .ok_or_else(|| StoreError::NotFound {
                kind: "kernel",
                name: named.unwrap_or("(the newest: there are none yet)").to_owned(),
            })
    }

    /// Whether a kernel has this name.
    pub(crate) fn has_kernel(&self, name: &str) -> Result<bool, StoreError> {
        let query = "SELECT EXISTS (SELECT 1 FROM kernels WHERE name = ?1)";
        self.shared.db.run(|c| c.query_row(query, [name], |row| row.get(0)))
    }

    fn kernel_of(&self, row: &Row<'_>) -> rusqlite::Result<KernelRecord> {
        let id: String = row.get(1)?;
        let folder = self.kernel_folder(&id);
        let info =
            KernelInfo { name: row.get(0)?, hash: row.get(2)?, created_at_unix: from_sql(row.get(3)?) };
        Ok(KernelRecord { info, vmlinuz: folder.join("vmlinuz"), modules: folder.join("modules.cpio"), id })
    }

    fn kernel_folder(&self, id: &str) -> PathBuf {
        self.folder("kernels").join(id)
    }

    /// Starts taking in a kernel.
    pub fn begin_kernel(&self, name: &KernelName) -> Result<KernelDraft, StoreError> {
        let staging = self.staging()?;
        Ok(KernelDraft { store: self.clone(), name: name.clone(), staging, vmlinuz: None, modules: None })
    }

    /// Forgets a kernel. Snapshots do not need it: it is in their memory.
    pub fn remove_kernel(&self, name: &KernelName) -> Result<(), StoreError> {
        let _guard = self.content_lock();
        let id = self.kernel(Some(name))?.id;
        let delete = "DELETE FROM kernels WHERE name = ?1";
        self.shared.db.commit_removal(|t| t.execute(delete, [name.as_str()]))?;
        fault::at!("store::kernel::forgotten");
        self.drop_kernel_content(&id)
    }

    /// Removes a kernel's files where nothing names them any more. The content lock must be held.
    pub(crate) fn drop_kernel_content(&self, id: &str) -> Result<(), StoreError> {
        let named: bool = self.shared.db.run(|c| {
            c.query_row("SELECT EXISTS (SELECT 1 FROM kernels WHERE id = ?1)", [id], |row| row.get(0))
        })?;
        if named {
            return Ok(());
        }
        disk::remove_folder(&self.kernel_folder(id))?;
        fault::at!("store::kernel::folder_removed");
        self.drop_initrds(id, None)
    }
}

/// A kernel on its way in. Dropping it leaves nothing.
#[derive(Debug)]
pub struct KernelDraft {
    store: Store,
    name: KernelName,
    staging: tempfile::TempDir,
    vmlinuz: Option<blake3::Hash>,
    modules: Option<blake3::Hash>,
}

impl KernelDraft {
    /// Takes in the kernel image (bzImage or ELF).
    pub fn write_vmlinuz(&mut self, from: impl Read) -> Result<(), StoreError> {
        let path = self.path("vmlinuz");
        self.vmlinuz = Some(disk::take_in("a kernel", from, &path, MAX_VMLINUZ)?.1);
        Ok(())
    }

    /// Takes in the newc archive of modules.
    pub fn write_modules(&mut self, from: impl Read) -> Result<(), StoreError> {
        let path = self.path("modules.cpio");
        self.modules = Some(disk::take_in("an archive of modules", from, &path, MAX_MODULES)?.1);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.staging.path().join(name)
    }

    /// Makes the kernel visible under its name, replacing what had it. It is then the newest.
    pub fn publish(self) -> Result<KernelRecord, StoreError> {
        let ready = self.seal()?;
        let store = &self.store;
        let _guard = store.content_lock();
        let old = store.kernel(Some(&self.name)).ok().map(|kernel| kernel.id);
        self.place(&ready)?;
        let db = &store.shared.db;
        let row = params![self.name.as_str(), ready.id, ready.vmlinuz, to_sql(now())];
        let insert = "INSERT OR REPLACE INTO kernels (name, id, hash, created_at) VALUES (?1, ?2, ?3, ?4)";
        let inserted = db.commit(|t| t.execute(insert, row).map_err(|e| db.failed(e)));
        fault::at!("store::kernel::named");
        for content in old.iter().chain([&ready.id]) {
            store.drop_kernel_content(content)?;
        }
        inserted?;
        store.kernel(Some(&self.name))
    }

    /// Makes its files last; what they hash to.
    pub(crate) fn seal(&self) -> Result<ReadyKernel, StoreError> {
        let (Some(vmlinuz), Some(modules)) = (self.vmlinuz, self.modules) else {
            return Err(StoreError::Size {
                what: "a kernel without image or modules",
                bytes: 0,
                max: MAX_VMLINUZ,
            });
        };
        let mut id = blake3::Hasher::new();
        let id = id.update(vmlinuz.as_bytes()).update(modules.as_bytes()).finalize().to_hex().to_string();
        disk::seal(&self.path("vmlinuz"))?;
        disk::seal(&self.path("modules.cpio"))?;
        disk::sync_folder(self.staging.path())?;
        fault::at!("store::kernel::sealed");
        Ok(ReadyKernel { id, vmlinuz: vmlinuz.to_hex().to_string() })
    }

    /// Moves it to where its hash says it is, unless it is there. The content lock must be held.
    pub(crate) fn place(&self, ready: &ReadyKernel) -> Result<(), StoreError> {
        let home = self.store.kernel_folder(&ready.id);
        if home.exists() {
            return Ok(());
        }
        disk::rename(self.staging.path(), &home)?;
        fault::at!("store::kernel::renamed");
        disk::sync_folder(&self.store.folder("kernels"))
    }

    /// Names it unless its name is taken. It is then the oldest: what is made here goes on with the kernels of here.
    pub(crate) fn name_as_oldest(&self, t: &Transaction<'_>, ready: &ReadyKernel) -> rusqlite::Result<()> {
        let insert = "INSERT OR IGNORE INTO kernels (position, name, id, hash, created_at) VALUES
            ((SELECT coalesce(min(position), 1) - 1 FROM kernels), ?1, ?2, ?3, ?4)";
        t.execute(insert, params![self.name.as_str(), ready.id, ready.vmlinuz, to_sql(now())]).map(drop)
    }
}

/// What a kernel that may be published hashes to.
#[derive(Debug)]
pub(crate) struct ReadyKernel {
    pub(crate) id: String,
    vmlinuz: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_the_default_and_names_can_be_re_used() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        assert!(matches!(store.kernel(None), Err(StoreError::NotFound { .. })));
        let put = |name: &str, vmlinuz: &[u8]| {
            let mut draft = store.begin_kernel(&name.parse().unwrap()).unwrap();
            draft.write_vmlinuz(vmlinuz).unwrap();
            draft.write_modules(&b"modules"[..]).unwrap();
            draft.publish().unwrap()
        };
        let one = put("6.1", b"one");
        let two = put("6.12", b"two");
        assert_eq!(store.kernel(None).unwrap(), two);
        assert_eq!(store.kernel(Some(&"6.1".parse().unwrap())).unwrap(), one);
        assert_eq!(std::fs::read(&one.vmlinuz).unwrap(), b"one");
        let again = put("6.1", b"two");
        assert_eq!((store.kernel(None).unwrap(), again.id.clone()), (again, two.id));
        assert!(!one.vmlinuz.exists());
        assert_eq!(store.kernels().unwrap().len(), 2);
        store.remove_kernel(&"6.1".parse().unwrap()).unwrap();
        assert!(two.vmlinuz.exists());
        store.remove_kernel(&"6.12".parse().unwrap()).unwrap();
        assert!(!two.vmlinuz.exists());
    }

    #[test]
    fn half_a_kernel_is_not_published() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let mut draft = store.begin_kernel(&"k".parse().unwrap()).unwrap();
        assert!(draft.write_vmlinuz(std::io::empty()).is_err());
        drop(draft);
        let mut draft = store.begin_kernel(&"k".parse().unwrap()).unwrap();
        draft.write_vmlinuz(&b"x"[..]).unwrap();
        assert!(draft.publish().is_err());
        assert!(store.kernels().unwrap().is_empty());
        assert_eq!(std::fs::read_dir(store.folder("staging")).unwrap().count(), 0);
    }
}
