//! A root file system from a tar archive that somebody else made.

use std::path::PathBuf;

use super::{MadeImage, MakeError, Progress};

/// What to import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarImage {
    /// Plain, or compressed with gzip, xz or zstd.
    pub tar: PathBuf,
    /// Size of the file system; the file is sparse.
    pub size_bytes: u64,
    /// Where the result goes; existing is replaced.
    pub out: PathBuf,
}

/// Unpacks the archive, refusing what would leave its folder, and makes a file system of it.
pub fn import_tar(image: &TarImage, progress: Progress<'_>) -> Result<MadeImage, MakeError> {
    let _ = (image, progress);
    todo!()
}
