//! Container images as forkd takes them in: layers as files, and what the image says about running it.
//!
//! ```text
//!   source     what a reference names: a registry, or an archive on this disk
//!   registry   manifests and blobs over HTTP, through oci-client
//!   archive    what `docker save` and tools of the Open Container Initiative write
//!   blobs      a folder of blobs under their digests: what was fetched once stays
//!   config     the configuration of an image, as far as it concerns a sandbox
//! ```
//!
//! Nothing of a registry or an archive is believed: documents are read to a bound, blobs are compared with
//! the digests that name them, and what a layer holds is checked by the one who unpacks it.
#![forbid(unsafe_code)]

mod archive;
mod blobs;
mod config;
mod error;
mod registry;
mod source;

pub use error::OciError;
pub use source::Source;

use std::path::{Path, PathBuf};

use forkd_protocol::guest::ImageSettings;

/// Most layers of one image; container engines stop at 127.
pub const MAX_LAYERS: usize = 500;
/// Largest layer, in bytes as it is stored.
pub const MAX_LAYER_BYTES: u64 = 64 << 30;
/// Largest manifest, index or configuration, in bytes.
const MAX_DOCUMENT_BYTES: u64 = 8 << 20;

/// An image whose layers lie on this disk.
#[derive(Debug)]
pub struct ContainerImage {
    /// What it was asked for by, and its digest: the origin of what is made of it.
    pub origin: String,
    /// Tar archives, plain or compressed, lowest first. They stay in the cache.
    pub layers: Vec<PathBuf>,
    /// How its processes are to be run.
    pub settings: ImageSettings,
}

/// Where to look and how.
#[derive(Debug, Clone)]
pub struct Fetch<'a> {
    /// Blobs of registries are kept here under their digests.
    pub cache: &'a Path,
    /// Speak plain HTTP with the registry. One on this computer is spoken to so anyway.
    pub insecure: bool,
    /// What `docker login` writes: the credentials for registries. None, or a file that is not there: nobody is known.
    pub credentials: Option<&'a Path>,
}

/// Gets an image: out of a registry what the cache lacks, out of an archive all of it.
///
/// Of an image for several platforms it is the one for Linux on x86-64.
pub async fn fetch(
    source: &Source,
    fetch: &Fetch<'_>,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<ContainerImage, OciError> {
    match source {
        Source::Registry(reference) => registry::pull(reference, fetch, progress).await,
        Source::Archive(path) => {
            let (path, cache) = (path.clone(), fetch.cache.to_owned());
            progress(&format!("reading {}", path.display()));
            tokio::task::spawn_blocking(move || archive::read(&path, &cache))
                .await
                .map_err(|e| OciError::io("read an archive", source, std::io::Error::other(e)))?
        }
    }
}
