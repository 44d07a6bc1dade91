//! Reading a bundle's document. It comes from anywhere: nothing of it is used before all of it was checked, and
//! nothing that it promises is believed of the objects.

use std::collections::{HashMap, HashSet};

use forkd_protocol::digest::Digest;
use forkd_protocol::names::{KernelName, Tag};
use forkd_protocol::rest::{
    BUNDLE_KIND, BUNDLE_VERSION, Bundle, BundleFile, BundleKernel, BundleSnapshot, Contents,
    MAX_BUNDLE_BYTES, PIECE_BYTES,
};
use serde::Deserialize;

use super::state::check_format;
use super::{BundleError, check_manifest};
use crate::extents::{ENTRY, HEADER, PAGE};
use crate::images::MAX_IMAGE_BYTES;
use crate::kernels::{MAX_MODULES, MAX_VMLINUZ};
use crate::manifest::{LayerRef, Manifest};

/// Most snapshots of one bundle.
const MAX_SNAPSHOTS: usize = 1024;
/// Longest text of a manifest.
const MAX_MANIFEST_BYTES: usize = 2 << 20;
/// Most bytes that all files of a bundle hold, before compression.
const MAX_TOTAL_BYTES: u64 = 1 << 40;

/// A bundle that keeps the format, and what is read out of it.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) bundle: Bundle,
    /// BLAKE3 of the document.
    pub(crate) digest: Digest,
    /// The snapshots' own; as many.
    pub(crate) snapshots: Vec<Snapshot>,
    /// Length of each object before compression.
    pub(crate) objects: HashMap<Digest, u64>,
}

/// What a snapshot of a bundle is, once its text was read.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) tag: Tag,
    pub(crate) id: Digest,
    pub(crate) manifest: Manifest,
}

/// As much of a document as every version has.
#[derive(Deserialize)]
struct Head {
    kind: String,
    version: u32,
}

impl Checked {
    /// Reads and checks a document.
    pub(crate) fn read(text: &[u8]) -> Result<Self, BundleError> {
        if text.len() > MAX_BUNDLE_BYTES {
            return Err(BundleError::refused(format!("its document has more than {MAX_BUNDLE_BYTES} bytes")));
        }
        let head: Head = parse(text, "its document")?;
        if head.kind != BUNDLE_KIND {
            return Err(BundleError::refused("its document is not that of a bundle"));
        }
        if head.version != BUNDLE_VERSION {
            let (found, known) = (head.version.into(), BUNDLE_VERSION.into());
            return Err(BundleError::Newer { what: "its document", found, known });
        }
        let bundle: Bundle = parse(text, "its document")?;
        let snapshots = read_snapshots(&bundle.snapshots)?;
        check_layers(&bundle.layers, &snapshots)?;
        check_images(&bundle.images, &snapshots)?;
        check_kernels(&bundle.kernels, &snapshots)?;
        let objects = collect(&bundle)?;
        Ok(Self { digest: Digest::of(text), bundle, snapshots, objects })
    }

    /// The snapshot that the bundle is made for.
    pub(crate) fn head(&self) -> &Snapshot {
        // Checked: there is one.
        &self.snapshots[self.snapshots.len() - 1]
    }
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8], what: &str) -> Result<T, BundleError> {
    serde_json::from_slice(text).map_err(|e| BundleError::refused(format!("{what} cannot be read: {e}")))
}

fn read_snapshots(given: &[BundleSnapshot]) -> Result<Vec<Snapshot>, BundleError> {
    if given.is_empty() || given.len() > MAX_SNAPSHOTS {
        let reason = format!("it holds {} snapshots; 1 to {MAX_SNAPSHOTS} are taken", given.len());
        return Err(BundleError::refused(reason));
    }
    let snapshots = given.iter().map(read_snapshot).collect::<Result<Vec<_>, _>>()?;
    let (mut tags, mut ids) = (HashSet::new(), HashSet::new());
    for snapshot in &snapshots {
        if !tags.insert(&snapshot.tag) || !ids.insert(snapshot.id) {
            return Err(BundleError::refused(format!(
                "the snapshot {:?} comes twice",
                snapshot.tag.as_str()
            )));
        }
    }
    for pair in snapshots.windows(2) {
        if pair[1].manifest.parent != Some(pair[0].id.to_string()) {
            let (a, b) = (&pair[0].tag, &pair[1].tag);
            return Err(BundleError::refused(format!(
                "the snapshot {b} does not descend from {a} before it"
            )));
        }
    }
    Ok(snapshots)
}

fn read_snapshot(given: &BundleSnapshot) -> Result<Snapshot, BundleError> {
    let tag: Tag = given.tag.parse().map_err(|e| BundleError::refused(format!("{e}")))?;
    if given.manifest.len() > MAX_MANIFEST_BYTES {
        return Err(BundleError::refused(format!("the manifest of {tag} is too long")));
    }
    let manifest = check_manifest::read(&tag, &given.manifest)?;
    check_format(given.state_format)?;
    if given.state.bytes != manifest.state_bytes {
        return Err(BundleError::refused(format!(
            "the machine state of {tag} has another length than it says"
        )));
    }
    check_contents(&given.state, "a machine state")?;
    let id = Digest::of(given.manifest.as_bytes());
    Ok(Snapshot { tag, id, manifest })
}

/// The layers are those that the manifests name, and as long.
fn check_layers(given: &[BundleFile], snapshots: &[Snapshot]) -> Result<(), BundleError> {
    let mut named: HashMap<&str, &LayerRef> = HashMap::new();
    for layer in snapshots.iter().flat_map(|snapshot| snapshot.manifest.layers()) {
        if *named.entry(&layer.hash).or_insert(layer) != layer {
            return Err(BundleError::refused(format!("two manifests disagree on the layer {}", layer.hash)));
        }
    }
    for file in given {
        let hash = file.hash.to_string();
        let Some(layer) = named.remove(&*hash) else {
            let reason = format!("the layer {hash} comes twice, or no manifest names it");
            return Err(BundleError::refused(reason));
        };
        let content = file.content.as_ref();
        let content = content.ok_or_else(|| BundleError::refused(format!("it lacks the layer {hash}")))?;
        if content.bytes != packed_bytes(layer.extents, layer.data_bytes) {
            return Err(BundleError::refused(format!("the layer {hash} has another length than it says")));
        }
        check_contents(content, "a layer")?;
    }
    match named.keys().next() {
        Some(hash) => Err(BundleError::refused(format!("it names the layer {hash} and lacks it"))),
        None => Ok(()),
    }
}

/// A table and what it lists. Both numbers were checked to be those of a possible layer.
pub(crate) fn packed_bytes(extents: u64, data_bytes: u64) -> u64 {
    ENTRY.saturating_mul(extents).saturating_add(HEADER).saturating_add(data_bytes)
}

fn check_images(given: &[BundleFile], snapshots: &[Snapshot]) -> Result<(), BundleError> {
    let mut named: HashMap<&str, u64> = HashMap::new();
    for image in snapshots.iter().map(|snapshot| &snapshot.manifest.image) {
        if *named.entry(&image.hash).or_insert(image.size_bytes) != image.size_bytes {
            return Err(BundleError::refused(format!("two manifests disagree on the image {}", image.hash)));
        }
    }
    for file in given {
        let hash = file.hash.to_string();
        let Some(size) = named.remove(&*hash) else {
            return Err(BundleError::refused(format!(
                "the image {hash} comes twice, or no manifest names it"
            )));
        };
        let most = packed_bytes(size / PAGE / 2 + 1, size.min(MAX_IMAGE_BYTES));
        match &file.content {
            Some(content) if content.bytes < HEADER || content.bytes > most => {
                return Err(BundleError::refused(format!("the image {hash} cannot have that length")));
            }
            Some(content) => check_contents(content, "an image")?,
            None => {}
        }
    }
    match named.keys().next() {
        Some(hash) => Err(BundleError::refused(format!("it names the image {hash} and lacks it"))),
        None => Ok(()),
    }
}

fn check_kernels(given: &[BundleKernel], snapshots: &[Snapshot]) -> Result<(), BundleError> {
    let mut named: HashSet<&str> = snapshots.iter().map(|s| s.manifest.kernel.as_str()).collect();
    for kernel in given {
        let name: KernelName = kernel.name.parse().map_err(|e| BundleError::refused(format!("{e}")))?;
        if !named.remove(name.as_str()) {
            let reason = format!("the kernel {name} comes twice, or no manifest names it");
            return Err(BundleError::refused(reason));
        }
        let Some(content) = &kernel.content else { continue };
        for (content, max) in [(&content.vmlinuz, MAX_VMLINUZ), (&content.modules, MAX_MODULES)] {
            if content.bytes == 0 || content.bytes > max {
                return Err(BundleError::refused(format!("the kernel {name} cannot have that length")));
            }
            check_contents(content, "a kernel")?;
        }
    }
    Ok(())
}

fn check_contents(contents: &Contents, what: &str) -> Result<(), BundleError> {
    if contents.pieces.len() as u64 == contents.bytes.div_ceil(PIECE_BYTES) {
        return Ok(());
    }
    let (bytes, pieces) = (contents.bytes, contents.pieces.len());
    Err(BundleError::refused(format!("{what} of {bytes} bytes cannot have {pieces} pieces")))
}

/// The objects with their lengths. A hash cannot be that of two lengths, nor all that is made of them be more than is
/// taken; an object can be part of it very often.
fn collect(bundle: &Bundle) -> Result<HashMap<Digest, u64>, BundleError> {
    let mut objects = HashMap::new();
    let mut total = 0u64;
    for (hash, bytes) in bundle.contents().flat_map(Contents::lengths) {
        total = total.saturating_add(bytes);
        if objects.insert(hash, bytes).is_some_and(|other| other != bytes) {
            return Err(BundleError::refused(format!("the object {hash} has two lengths")));
        }
    }
    if total > MAX_TOTAL_BYTES {
        let reason = format!("its files hold {total} bytes; {MAX_TOTAL_BYTES} are taken");
        return Err(BundleError::refused(reason));
    }
    Ok(objects)
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn an_object_counts_as_often_as_it_is_part_of_something() {
        let (_folder, store) = samples::store();
        samples::chain(&store);
        let (_, mut bundle) = samples::document(&store, "c");
        assert!(collect(&bundle).is_ok());
        let content = bundle.layers[0].content.as_mut().unwrap();
        content.bytes = MAX_TOTAL_BYTES;
        content.pieces = vec![[7; 32].into(); (MAX_TOTAL_BYTES / PIECE_BYTES) as usize];
        let refused = collect(&bundle).unwrap_err().to_string();
        assert!(refused.contains("its files hold"), "{refused}");
    }
}
