//! The init ramdisk: the agent as `/init`, and the kernel's modules.

use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::records::KernelRecord;
use crate::store::Store;

impl Store {
    /// The ramdisk for this kernel and this agent binary; made on first use, then cached.
    pub fn initrd(&self, kernel: &KernelRecord, agent: &Path) -> Result<PathBuf, StoreError> {
        let _ = (kernel, agent);
        todo!()
    }
}
