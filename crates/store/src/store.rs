//! Opening a store, and what all its parts share.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::StoreError;

/// The store of one controller. Cheap to clone; every method blocks.
#[derive(Debug, Clone)]
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) root: PathBuf,
}

impl Store {
    /// Opens the store at `root`, creating it where there is none. Only one process can have it open.
    ///
    /// Files that no row names (a crash left them) are removed.
    pub fn open(root: &Path) -> Result<Self, StoreError> {
        let _ = root;
        todo!()
    }

    /// The folder that everything lies in.
    pub fn root(&self) -> &Path {
        &self.shared.root
    }
}
