//! A root file system from a folder.

use std::path::PathBuf;

use super::ext4::make_ext4;
use super::{MadeImage, MakeError, Progress};

/// What to make a file system of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderImage {
    /// The root; owners, modes and links are kept as they are.
    pub folder: PathBuf,
    /// Size of the file system; the file is sparse.
    pub size_bytes: u64,
    /// Where the result goes; existing is replaced.
    pub out: PathBuf,
}

/// Makes a file system of a folder, which stays as it is. Needs root, to read what others own.
pub fn folder_image(image: &FolderImage, progress: Progress<'_>) -> Result<MadeImage, MakeError> {
    super::need_root("making an image of a folder")?;
    let folder = image.folder.canonicalize().map_err(|e| MakeError::io("open", &image.folder, e))?;
    if !folder.is_dir() {
        return Err(MakeError::Caller(format!("{} is no folder", folder.display())));
    }
    super::folder_of(&image.out)?;
    let origin = format!("folder {}", folder.display());
    make_ext4(&folder, &image.out, image.size_bytes, &origin, progress)?;
    Ok(MadeImage { path: image.out.clone(), origin, cached: false })
}
