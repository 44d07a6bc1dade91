//! Small file systems, for tests of what is full.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::guard;

/// A file system of its own in memory, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts one of so many MiB. None, said loudly, where that cannot be done.
    ///
    /// # Panics
    /// It cannot be done, and root is demanded.
    pub fn mount(mib: u32) -> Option<Self> {
        let mounted = tempfile::tempdir().map_err(|e| e.to_string()).and_then(|folder| {
            let size = std::ffi::CString::new(format!("size={mib}m")).unwrap_or_default();
            mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str()))
                .map(|()| Self { folder })
                .map_err(|e| format!("a small tmpfs cannot be mounted: {e}"))
        });
        guard::met("root", mounted.as_ref().map(|_| ()).map_err(Clone::clone)).then_some(())?;
        mounted.ok()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Takes all room but so many KiB. Give it back by dropping what is returned.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn fill_but(&self, kib: u64) -> std::io::Result<Ballast> {
        let file = File::from(rustix::fs::open(
            self.path(),
            OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC,
            Mode::RUSR | Mode::WUSR,
        )?);
        let mut at = 0;
        while file.write_all_at(&[1; 4096], at).is_ok() {
            at += 4096;
        }
        file.set_len(at.saturating_sub(kib << 10))?;
        Ok(Ballast { _file: file })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

/// What takes room, without a name, until it is dropped.
#[derive(Debug)]
pub struct Ballast {
    _file: File,
}
