//! A root file system from Debian's packages.

use std::path::PathBuf;

use super::{MadeImage, MakeError, Progress};

/// What to put into the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebianImage {
    /// `bookworm`, `trixie`, ...
    pub suite: String,
    /// On top of Debian's `minbase`.
    pub packages: Vec<String>,
    /// Size of the file system; the file is sparse.
    pub size_bytes: u64,
    /// Where the result is kept and found again.
    pub cache: PathBuf,
}

/// Makes the image, or finds the one made before.
pub fn debian_image(image: &DebianImage, progress: Progress<'_>) -> Result<MadeImage, MakeError> {
    let _ = (image, progress);
    todo!()
}
