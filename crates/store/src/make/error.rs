//! What can go wrong when images and kernels are made.

use std::io;
use std::path::{Path, PathBuf};

use forkd_protocol::error::ErrorClass;

/// Why something was not made. What was half done is removed.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// A program is not installed.
    #[error("{tool} is not installed; run: apt-get install {package}")]
    ToolMissing {
        /// The program.
        tool: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// This machine's apt does not say where Debian's packages are.
    #[error(
        "apt on this machine is configured with no mirror of Debian; set FORKD_DEBIAN_MIRROR to the URL of one"
    )]
    NoMirror,
    /// A program failed.
    #[error("{tool} failed ({status}): {tail}")]
    ToolFailed {
        /// The program.
        tool: &'static str,
        /// Exit code or signal.
        status: String,
        /// The end of what it wrote to stderr.
        tail: String,
    },
    /// The file system is full.
    #[error("no space is left (ENOSPC) for {path}; free some, or set FORKD_CACHE_DIR, and try again")]
    Full {
        /// What was being written.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file operation failed.
    #[error("could not {what} {path}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// An archive would leave its folder, or asks for what an image must not have.
    #[error("the archive is refused: entry {entry:?} {reason}")]
    HostileArchive {
        /// Name of the entry.
        entry: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Caller(String),
    /// The kernel package lacks what guests need.
    #[error("the kernel {release} has no {missing}")]
    KernelUnfit {
        /// Which kernel.
        release: String,
        /// Modules, or files, that it lacks.
        missing: String,
    },
}

impl MakeError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::ToolMissing { .. } | Self::NoMirror | Self::KernelUnfit { .. } => ErrorClass::HostUnfit,
            Self::Full { .. } => ErrorClass::Exhausted,
            Self::HostileArchive { .. } | Self::Caller(_) => ErrorClass::Caller,
            Self::ToolFailed { .. } | Self::Io { .. } => ErrorClass::Internal,
        }
    }

    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        let (path, source) = (path.as_ref().to_owned(), source.into());
        if crate::error::is_full(&source) {
            Self::Full { path, source }
        } else {
            Self::Io { what, path, source }
        }
    }
}
