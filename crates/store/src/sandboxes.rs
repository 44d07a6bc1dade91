//! Sandboxes: rows that outlive the controller, and a folder for each.

use std::path::PathBuf;

use forkd_protocol::names::SandboxId;

use crate::error::StoreError;
use crate::records::SandboxRow;
use crate::store::Store;

impl Store {
    /// Writes the row of a sandbox, replacing an older one.
    pub fn put_sandbox(&self, row: &SandboxRow) -> Result<(), StoreError> {
        let _ = row;
        todo!()
    }

    /// All rows, oldest first.
    pub fn sandboxes(&self) -> Result<Vec<SandboxRow>, StoreError> {
        todo!()
    }

    /// Forgets a sandbox; one that is not known is fine.
    pub fn remove_sandbox(&self, id: &SandboxId) -> Result<(), StoreError> {
        let _ = id;
        todo!()
    }

    /// Where the files of a sandbox lie.
    pub fn run_dir(&self, id: &SandboxId) -> PathBuf {
        self.root().join("run").join(id.as_str())
    }

    /// Makes the folder of a sandbox, mode 0700. A folder without a row is swept when the store opens.
    pub fn create_run_dir(&self, id: &SandboxId) -> Result<PathBuf, StoreError> {
        let _ = id;
        todo!()
    }

    /// Removes the folder of a sandbox; one that is not there is fine.
    pub fn remove_run_dir(&self, id: &SandboxId) -> Result<(), StoreError> {
        let _ = id;
        todo!()
    }
}
