//! A root file system from the layers of a container image.

use std::fs::{self, File};
use std::io::Cursor;
use std::path::PathBuf;

use forkd_protocol::guest::{IMAGE_SETTINGS, ImageSettings};

use super::ext4::make_ext4;
use super::import::decompressed;
use super::unpack::unpack_layer;
use super::{MadeImage, MakeError, Progress};

/// What to make a file system of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayeredImage {
    /// Tar archives, plain or compressed with gzip, xz or zstd; lowest first.
    pub layers: Vec<PathBuf>,
    /// How its processes are to be run: is written into the image.
    pub settings: ImageSettings,
    /// Where the layers come from.
    pub origin: String,
    /// Size of the file system, and the most that all layers together may unpack to; the file is sparse.
    pub size_bytes: u64,
    /// Where the result goes; existing is replaced.
    pub out: PathBuf,
}

/// Unpacks the layers over each other, refusing what would leave their folder, and makes a file system of them. Needs
/// root.
pub fn layered_image(image: &LayeredImage, progress: Progress<'_>) -> Result<MadeImage, MakeError> {
    super::need_root("unpacking a container image")?;
    let work = super::work_folder(&super::folder_of(&image.out)?)?;
    let root = work.path().join("root");
    fs::create_dir(&root).map_err(|e| MakeError::io("create", &root, e))?;
    let mut left = image.size_bytes;
    for (n, layer) in image.layers.iter().enumerate() {
        progress(&format!("unpacking layer {} of {}", n + 1, image.layers.len()));
        let file = File::open(layer).and_then(decompressed).map_err(|e| MakeError::io("read", layer, e))?;
        left = left.saturating_sub(unpack_layer(file, &root, left)?.bytes);
    }
    write_settings(&root, &image.settings)?;
    make_ext4(&root, &image.out, image.size_bytes, &image.origin, progress)?;
    Ok(MadeImage { path: image.out.clone(), origin: image.origin.clone(), cached: false })
}

/// Puts the settings where the agent looks for them. As one more layer: the image may have put a link there.
fn write_settings(root: &std::path::Path, settings: &ImageSettings) -> Result<(), MakeError> {
    let failed = |e: std::io::Error| MakeError::io("write", IMAGE_SETTINGS, e);
    let json = serde_json::to_vec_pretty(settings).map_err(|e| failed(e.into()))?;
    let mut header = tar::Header::new_ustar();
    header.set_size(json.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    let mut layer = tar::Builder::new(Vec::new());
    let name = IMAGE_SETTINGS.trim_start_matches('/');
    layer.append_data(&mut header, name, &json[..]).map_err(failed)?;
    let layer = layer.into_inner().map_err(failed)?;
    unpack_layer(Cursor::new(layer), root, json.len() as u64).map(drop)
}

#[cfg(test)]
mod tests;
