//! The init ramdisk: the agent as `/init`, and the kernel's modules.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::cpio::CpioWriter;
use crate::disk;
use crate::error::StoreError;
use crate::fault;
use crate::kernels::MAX_MODULES;
use crate::records::KernelRecord;
use crate::store::Store;

const MAX_AGENT: u64 = 1 << 30;

impl Store {
    /// The ramdisk for this kernel and this agent binary; made on first use, then cached.
    pub fn initrd(&self, kernel: &KernelRecord, agent: &Path) -> Result<PathBuf, StoreError> {
        let (size, hash) = disk::hash_file("an agent", agent, MAX_AGENT)?;
        let name = format!("{}-{}.cpio", kernel.id, hash.to_hex());
        let home = self.folder("initrd").join(&name);
        let _guard = self.content_lock();
        if home.exists() {
            return Ok(home);
        }
        let staging = self.staging()?;
        let aside = staging.path().join("initrd");
        write_initrd(&aside, kernel, agent, size)?;
        disk::seal(&aside)?;
        fault::at!("store::initrd::sealed");
        // Another agent is another program version: the ramdisks of earlier ones are not used again. First, since who
        // finds this one does not look for others.
        self.drop_initrds(&kernel.id, Some(&name))?;
        fault::at!("store::initrd::old_dropped");
        disk::rename(&aside, &home)?;
        Ok(home)
    }

    /// Removes the ramdisks of a kernel, except for one.
    pub(crate) fn drop_initrds(&self, kernel: &str, except: Option<&str>) -> Result<(), StoreError> {
        let folder = self.folder("initrd");
        for entry in fs::read_dir(&folder).map_err(|e| StoreError::io("list", &folder, e))?.flatten() {
            let name = entry.file_name();
            let of_kernel = name.to_str().is_some_and(|n| n.starts_with(kernel) && Some(n) != except);
            if of_kernel {
                disk::remove_file(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Two archives in a row: the kernel unpacks both.
fn write_initrd(path: &Path, kernel: &KernelRecord, agent: &Path, agent_size: u64) -> Result<(), StoreError> {
    let failed = |e: io::Error| StoreError::io("write", path, e);
    let mut archive = CpioWriter::new(BufWriter::with_capacity(1 << 20, disk::create_new(path)?));
    // Mount points, and the console that the first program starts with.
    for folder in ["dev", "proc", "sys", "root"] {
        archive.folder(folder).map_err(failed)?;
    }
    archive.file_from("init", 0o755, agent_size, disk::open(agent)?).map_err(failed)?;
    let mut out = archive.finish().map_err(failed)?;
    let modules = disk::open(&kernel.modules)?;
    io::copy(&mut io::Read::take(modules, MAX_MODULES), &mut out).map_err(failed)?;
    out.flush().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpio;

    #[test]
    fn the_ramdisk_holds_agent_and_modules_and_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let mut modules = CpioWriter::new(Vec::new());
        modules.file("modules.order.forkd", 0o644, b"/lib/modules/a.ko\n").unwrap();
        let modules = modules.finish().unwrap();
        let mut draft = store.begin_kernel(&"k".parse().unwrap()).unwrap();
        draft.write_vmlinuz(&b"kernel"[..]).unwrap();
        draft.write_modules(&modules[..]).unwrap();
        let kernel = draft.publish().unwrap();
        let agent = folder.path().join("agent");
        fs::write(&agent, b"agent one").unwrap();

        let first = store.initrd(&kernel, &agent).unwrap();
        let entries = cpio::parse(&fs::read(&first).unwrap());
        let find = |name: &str| entries.iter().find(|e| e.0 == name).unwrap();
        assert_eq!((find("init").1, &find("init").2[..]), (0o100_755, &b"agent one"[..]));
        assert_eq!(find("modules.order.forkd").2, b"/lib/modules/a.ko\n");
        assert_eq!(store.initrd(&kernel, &agent).unwrap(), first);

        fs::write(&agent, b"agent two").unwrap();
        let second = store.initrd(&kernel, &agent).unwrap();
        assert!(second.exists() && !first.exists());
        store.remove_kernel(&"k".parse().unwrap()).unwrap();
        assert!(!second.exists());
    }
}
