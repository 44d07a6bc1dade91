//! A manifest from outside: whether it is one that this forkd could have written.

use forkd_protocol::digest::Digest;
use forkd_protocol::guest::GUEST_VERSION;
use forkd_protocol::names::{ImageName, KernelName, NameError, SecretName, Tag};
use serde::Deserialize;

use super::BundleError;
use crate::draft::{MAX_MEMORY_MIB, MAX_STATE_BYTES, MEMORY_HOLE};
use crate::extents::PAGE;
use crate::images::MAX_IMAGE_BYTES;
use crate::layers::LayerBounds;
use crate::manifest::{LayerRef, MANIFEST_FORMAT, Manifest};

/// Most layers of memory, or of a disk.
const MAX_LAYERS: usize = 1024;
/// Most names of secrets: those of a sandbox and of what it came from.
const MAX_SECRETS: usize = 1024;
/// Most vCPUs of a guest.
const MAX_VCPUS: u32 = 8;

#[derive(Deserialize)]
struct Head {
    format: u32,
}

/// Reads the text of a manifest and checks it.
pub(super) fn read(tag: &Tag, text: &str) -> Result<Manifest, BundleError> {
    let refused = |reason: String| BundleError::refused(format!("the manifest of {tag} {reason}"));
    let unreadable = |e: serde_json::Error| refused(format!("cannot be read: {e}"));
    let head: Head = serde_json::from_str(text).map_err(unreadable)?;
    if head.format > MANIFEST_FORMAT {
        let (found, known) = (head.format.into(), MANIFEST_FORMAT.into());
        return Err(BundleError::Newer { what: "a manifest", found, known });
    }
    if head.format < MANIFEST_FORMAT {
        return Err(refused(format!("has format {}, and this forkd reads {MANIFEST_FORMAT}", head.format)));
    }
    let manifest: Manifest = serde_json::from_str(text).map_err(unreadable)?;
    // An older agent is let in: the fork says what to do about it.
    if manifest.agent_protocol > GUEST_VERSION {
        let (found, known) = (manifest.agent_protocol.into(), GUEST_VERSION.into());
        return Err(BundleError::Newer { what: "the protocol of its agent", found, known });
    }
    check_names(&manifest).map_err(|e| refused(format!("has a wrong name: {e}")))?;
    check_sizes(&manifest).map_err(|reason| refused(reason.to_owned()))?;
    Ok(manifest)
}

fn check_names(manifest: &Manifest) -> Result<(), NameError> {
    manifest.image.name.parse::<ImageName>()?;
    manifest.kernel.parse::<KernelName>()?;
    manifest.secrets.iter().try_for_each(|name| name.parse::<SecretName>().map(drop))?;
    let own = [&manifest.image.hash, &manifest.state_hash];
    let layers = manifest.layers().map(|layer| &layer.hash);
    own.into_iter()
        .chain(layers)
        .chain(&manifest.parent)
        .try_for_each(|hash| hash.parse::<Digest>().map(drop))
}

fn check_sizes(manifest: &Manifest) -> Result<(), &'static str> {
    if manifest.vcpus == 0 || manifest.vcpus > MAX_VCPUS {
        return Err("has an impossible number of vCPUs");
    }
    if manifest.memory_mib == 0 || manifest.memory_mib > MAX_MEMORY_MIB {
        return Err("has an impossible size of memory");
    }
    if manifest.secrets.len() > MAX_SECRETS {
        return Err("names more secrets than are taken");
    }
    if manifest.state_bytes == 0 || manifest.state_bytes > MAX_STATE_BYTES {
        return Err("has an impossible length of machine state");
    }
    let image = manifest.image.size_bytes;
    if image == 0 || image > MAX_IMAGE_BYTES || !image.is_multiple_of(PAGE) {
        return Err("has an impossible size of image");
    }
    let count = |layers: &[LayerRef]| layers.len() <= MAX_LAYERS;
    if manifest.memory.is_empty() || !count(&manifest.memory) || !count(&manifest.disk) {
        return Err("has no memory, or more layers than are taken");
    }
    let memory = manifest.memory_mib << 20;
    let bounds = LayerBounds { file_bytes: memory + MEMORY_HOLE, data_bytes: memory };
    let disk = LayerBounds { file_bytes: image, data_bytes: image };
    let fits = |layers: &[LayerRef], bounds| layers.iter().all(|layer| is_possible(layer, bounds));
    if fits(&manifest.memory, bounds) && fits(&manifest.disk, disk) {
        Ok(())
    } else {
        Err("has a layer that is larger than what it is a layer of, or is none")
    }
}

/// Extents hold a page at least, and there is one between any two.
fn is_possible(layer: &LayerRef, bounds: LayerBounds) -> bool {
    let LayerRef { size_bytes, data_bytes, extents, .. } = *layer;
    let pages = size_bytes / PAGE;
    size_bytes.is_multiple_of(PAGE)
        && data_bytes.is_multiple_of(PAGE)
        && size_bytes <= bounds.file_bytes
        && data_bytes <= bounds.data_bytes.min(size_bytes)
        && extents <= data_bytes / PAGE
        && (extents > 0 || data_bytes == 0)
        && extents <= pages.div_ceil(2)
}
