//! How much room a file system has, for whoever is told that there is none.

use std::fmt;
use std::path::Path;

use crate::store::Store;

/// Room of a file system at the moment at which it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that are free, and bytes in all; none where the kernel did not say.
    bytes: Option<(u64, u64)>,
}

impl Room {
    /// Of the file system of `path`, which need not exist.
    pub(crate) fn of(path: &Path) -> Self {
        let found = path.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
        let bytes = |blocks: u64, size: u64| blocks.saturating_mul(size);
        Self { bytes: found.map(|fs| (bytes(fs.f_bavail, fs.f_frsize), bytes(fs.f_blocks, fs.f_frsize))) }
    }
}

impl Room {
    /// Whether so many bytes are free, as far as that is known.
    pub(crate) fn holds(&self, bytes: u64) -> bool {
        self.bytes.is_none_or(|(free, _)| bytes <= free)
    }

    /// Bytes that are free, where the kernel says so.
    pub fn free_bytes(&self) -> Option<u64> {
        self.bytes.map(|(free, _)| free)
    }
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some((free, all)) => write!(f, "{} KiB of {} MiB are free", free >> 10, all >> 20),
            None => f.write_str("how much is free is not known"),
        }
    }
}

impl Store {
    /// Room of the file system that the store lies on.
    pub fn room(&self) -> Room {
        Room::of(self.root())
    }
}
