//! Kernels: an image to boot and the archive of its modules.

use std::io::Read;

use forkd_protocol::names::KernelName;

use crate::error::StoreError;
use crate::records::KernelRecord;
use crate::store::Store;

impl Store {
    /// All kernels, newest first.
    pub fn kernels(&self) -> Result<Vec<KernelRecord>, StoreError> {
        todo!()
    }

    /// One kernel; the newest where no name is given.
    pub fn kernel(&self, name: Option<&KernelName>) -> Result<KernelRecord, StoreError> {
        let _ = name;
        todo!()
    }

    /// Starts taking in a kernel.
    pub fn begin_kernel(&self, name: &KernelName) -> Result<KernelDraft, StoreError> {
        let _ = name;
        todo!()
    }

    /// Forgets a kernel. Snapshots do not need it: it is in their memory.
    pub fn remove_kernel(&self, name: &KernelName) -> Result<(), StoreError> {
        let _ = name;
        todo!()
    }
}

/// A kernel on its way in. Dropping it leaves nothing.
#[derive(Debug)]
pub struct KernelDraft {}

impl KernelDraft {
    /// Takes in the kernel image (bzImage or ELF).
    pub fn write_vmlinuz(&mut self, from: impl Read) -> Result<(), StoreError> {
        let _ = from;
        todo!()
    }

    /// Takes in the newc archive of modules.
    pub fn write_modules(&mut self, from: impl Read) -> Result<(), StoreError> {
        let _ = from;
        todo!()
    }

    /// Makes the kernel visible under its name, replacing what had it.
    pub fn publish(self) -> Result<KernelRecord, StoreError> {
        todo!()
    }
}
