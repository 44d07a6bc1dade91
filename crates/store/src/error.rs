//! What can go wrong in the store, and who has to act on it.

use std::io;
use std::path::{Path, PathBuf};

use forkd_protocol::error::ErrorClass;

use crate::bundle::BundleError;
use crate::room::Room;

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has this store open. Stop it, or use another root.
    #[error("the store {root} is in use by another forkd ({holder}); stop it or choose another --root")]
    Locked {
        /// Root of the store.
        root: PathBuf,
        /// What the other one wrote into the lock file.
        holder: String,
    },
    /// The file system is full. Nothing was published; free space and ask again.
    #[error(
        "no space is left (ENOSPC) for {path}: {room}; free some, or move the store with --root, and try again"
    )]
    Full {
        /// What was being written.
        path: PathBuf,
        /// What the file system has.
        room: Room,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file operation failed for another reason.
    #[error("could not {what} {path}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The registry failed.
    #[error("the registry {path} failed")]
    Database {
        /// The database file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// No image, kernel, snapshot or sandbox has this name.
    #[error("there is no {kind} {name:?}")]
    NotFound {
        /// `image`, `kernel`, `snapshot`, `sandbox`.
        kind: &'static str,
        /// The name that was given.
        name: String,
    },
    /// A snapshot of this tag exists, or is being made right now.
    #[error("the tag {tag:?} is taken; remove that snapshot first or choose another tag")]
    TagTaken {
        /// The tag.
        tag: String,
    },
    /// Something of this kind has that name. Remove it first or choose another.
    #[error("there is a {kind} {name:?} already; remove it first or choose another name")]
    NameTaken {
        /// Such as `workspace`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// Other snapshots descend from this one. Remove them too, or this one alone by force.
    #[error("{} descend from {tag:?}; remove them first, or with it (cascade), or this one alone (force)", dependents.join(", "))]
    HasDependents {
        /// The snapshot that was to go.
        tag: String,
        /// Those that descend from it.
        dependents: Vec<String>,
    },
    /// What a draft was built on was removed before it was published.
    #[error("{kind} {name:?} was removed while it was being used for a snapshot")]
    Vanished {
        /// `image` or `kernel`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The snapshot that was to be replaced was removed or replaced meanwhile. Ask again.
    #[error("the snapshot {tag:?} was removed or replaced meanwhile; it stays as it is now")]
    Overtaken {
        /// Its tag.
        tag: String,
    },
    /// What was handed in is larger than the store accepts, or empty.
    #[error("{what} of {bytes} bytes is refused: it must have 1 to {max}")]
    Size {
        /// `an image`, ...
        what: &'static str,
        /// How large it is (at least).
        bytes: u64,
        /// The bound.
        max: u64,
    },
    /// An image arrived cut off, or does not keep the format of the stream.
    #[error("the image is refused: {reason}")]
    BadUpload {
        /// What is wrong with it.
        reason: String,
    },
    /// A layer that a monitor wrote, or one from outside, does not keep the format.
    #[error("the layer {path} is refused: {reason}")]
    BadLayer {
        /// Data or extent file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Stored content is not what its name says. Remove what uses it and make it again.
    #[error("{path} is damaged: its content hashes to {found}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Hash of what is there.
        found: String,
    },
    /// A bundle does not leave or does not arrive.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A manifest or registry of another version of forkd.
    #[error(
        "{path} has format {found}; this forkd reads {known}: use the forkd that wrote it, or make it again"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// What it says.
        found: String,
        /// What would be understood.
        known: u32,
    },
}

impl StoreError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Locked { .. }
            | Self::TagTaken { .. }
            | Self::NameTaken { .. }
            | Self::HasDependents { .. }
            | Self::Overtaken { .. }
            | Self::Vanished { .. } => ErrorClass::Conflict,
            Self::Full { .. } => ErrorClass::Exhausted,
            Self::NotFound { .. } => ErrorClass::NotFound,
            Self::Size { .. } | Self::BadUpload { .. } => ErrorClass::Caller,
            Self::BadLayer { .. } | Self::Damaged { .. } | Self::Format { .. } => ErrorClass::Corrupt,
            Self::Io { source, .. } => class_of_io(source),
            Self::Bundle(e) => e.class(),
            Self::Database { .. } => ErrorClass::Internal,
        }
    }

    pub(crate) fn not_found(kind: &'static str, name: &str) -> Self {
        Self::NotFound { kind, name: name.to_owned() }
    }

    /// An I/O error with its operation and path; a full disk becomes [`StoreError::Full`].
    pub(crate) fn io(what: &'static str, path: impl AsRef<Path>, source: impl Into<io::Error>) -> Self {
        let (path, source) = (path.as_ref().to_owned(), source.into());
        if is_full(&source) { Self::full(path, source) } else { Self::Io { what, path, source } }
    }

    /// The file system of `path` is full.
    pub fn full(path: PathBuf, source: io::Error) -> Self {
        Self::Full { room: Room::of(&path), path, source }
    }

    /// A failure of SQLite; a full disk becomes [`StoreError::Full`].
    pub(crate) fn database(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_owned();
        match source.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => {
                Self::full(path, io::Error::new(io::ErrorKind::StorageFull, source))
            }
            _ => Self::Database { path, source },
        }
    }
}

/// Whether an error means that the disk (or a quota) is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn class_of_io(error: &io::Error) -> ErrorClass {
    const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();
    const ENFILE: i32 = rustix::io::Errno::NFILE.raw_os_error();
    match error.raw_os_error() {
        Some(EMFILE | ENFILE) => ErrorClass::Exhausted,
        _ if error.kind() == io::ErrorKind::OutOfMemory => ErrorClass::Exhausted,
        _ if error.kind() == io::ErrorKind::PermissionDenied => ErrorClass::HostUnfit,
        _ => ErrorClass::Internal,
    }
}
