//! What can go wrong with cgroups.

use std::io;
use std::path::{Path, PathBuf};

/// Why a limit could not be set, or an account not be read.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The host cannot enforce a limit; `reason` says what is missing. Ask without it.
    #[error("this host cannot limit {what}: {reason}")]
    Unavailable {
        /// What was to be limited.
        what: &'static str,
        /// What is missing, and the cure.
        reason: String,
    },
    /// A file of the hierarchy could not be written or read.
    #[error("could not {what} {path}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CgroupError {
    pub(super) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}
