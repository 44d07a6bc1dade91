//! Snapshots that travel. One document, the [`Bundle`], names everything that a snapshot needs; what it names moves
//! as *objects*: pieces of a few MiB, each called by its BLAKE3 and compressed with zstd. A bundle file, a hub and
//! this API carry the same document and the same objects (docs/snapshot-format.md).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SnapshotInfo;
use crate::digest::Digest;

/// What a [`Bundle`] says that it is.
pub const BUNDLE_KIND: &str = "forkd-bundle";
/// Version of the document that this program writes, and the newest that it reads.
pub const BUNDLE_VERSION: u32 = 1;
/// Length of every piece of a content but its last, before compression.
pub const PIECE_BYTES: u64 = 8 << 20;
/// Longest document.
pub const MAX_BUNDLE_BYTES: usize = 16 << 20;

/// The most bytes that a piece of `bytes` may have when it is compressed: what cannot be compressed grows a little.
pub fn longest_object(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 128).saturating_add(4096)
}

/// Everything that a snapshot consists of, by content. Fields that are not known are left alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Bundle {
    /// [`BUNDLE_KIND`].
    pub kind: String,
    /// [`BUNDLE_VERSION`].
    pub version: u32,
    /// The program that wrote it; for people.
    #[serde(default)]
    pub made_by: String,
    /// The snapshot, which is the last, and those that it descends from, each after its parent.
    pub snapshots: Vec<BundleSnapshot>,
    /// The memory and disk layers that these name.
    pub layers: Vec<BundleFile>,
    /// The images that these name.
    pub images: Vec<BundleFile>,
    /// The kernels that these were booted with, where they were still known. No snapshot needs one to be forked.
    #[serde(default)]
    pub kernels: Vec<BundleKernel>,
}

/// One snapshot of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BundleSnapshot {
    /// Its name where it comes from.
    pub tag: String,
    /// The text of its manifest; the BLAKE3 of this text is the snapshot's id.
    pub manifest: String,
    /// Its machine state.
    pub state: Contents,
    /// Version of the format of its machine state.
    pub state_format: u32,
    /// Maker of the processor that its guests were shown, as CPUID has it.
    pub cpu_vendor: String,
}

/// A layer or an image: a table of its extents, followed by what these hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BundleFile {
    /// What it is called by.
    #[schema(value_type = String)]
    pub hash: Digest,
    /// Absent where the other side has to have it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Contents>,
}

/// A kernel and its modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BundleKernel {
    /// Its name.
    pub name: String,
    /// Hash of the hashes of both files.
    #[schema(value_type = String)]
    pub id: Digest,
    /// Absent where the other side has to have it already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<KernelContents>,
}

/// What a kernel consists of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelContents {
    /// bzImage or ELF.
    pub vmlinuz: Contents,
    /// A newc archive.
    pub modules: Contents,
}

/// Bytes, cut into pieces of [`PIECE_BYTES`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Contents {
    /// How many.
    pub bytes: u64,
    /// BLAKE3 of each piece, in order.
    #[schema(value_type = Vec<String>)]
    pub pieces: Vec<Digest>,
}

impl Contents {
    /// Each piece with its length. Only for contents whose number of pieces fits their length.
    pub fn lengths(&self) -> impl Iterator<Item = (Digest, u64)> {
        let at = |n: usize| (n as u64).saturating_mul(PIECE_BYTES);
        self.pieces
            .iter()
            .enumerate()
            .map(move |(n, hash)| (*hash, self.bytes.saturating_sub(at(n)).min(PIECE_BYTES)))
    }
}

impl Bundle {
    /// All contents, in the order in which they are carried.
    pub fn contents(&self) -> impl Iterator<Item = &Contents> {
        let states = self.snapshots.iter().map(|snapshot| &snapshot.state);
        let files = self.layers.iter().chain(&self.images).filter_map(|file| file.content.as_ref());
        let kernels = self.kernels.iter().filter_map(|kernel| kernel.content.as_ref());
        states.chain(files).chain(kernels.flat_map(|kernel| [&kernel.vmlinuz, &kernel.modules]))
    }

    /// All objects with their lengths before compression, each once, in the order in which they are carried.
    pub fn objects(&self) -> Vec<(Digest, u64)> {
        let mut seen = std::collections::HashSet::new();
        self.contents().flat_map(Contents::lengths).filter(|(hash, _)| seen.insert(*hash)).collect()
    }
}

/// What becomes of a snapshot that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It is taken in under this tag.
    New,
    /// It is here already.
    Present,
    /// An ancestor whose tag names another snapshot here: only those of its layers are kept that others need.
    Unnamed,
}

/// One snapshot of a bundle that arrives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportedSnapshot {
    /// Its tag here; where it comes from, for one that has none here.
    pub tag: String,
    /// Its id.
    #[schema(value_type = String)]
    pub id: Digest,
    /// What becomes of it.
    pub fate: Fate,
}

/// An import under way: `POST /v1/imports`, `GET /v1/imports/{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImportStatus {
    /// BLAKE3 of the document: what the import is called by.
    #[schema(value_type = String)]
    pub id: Digest,
    /// What becomes of the snapshots; the last is the one that is imported.
    pub snapshots: Vec<ImportedSnapshot>,
    /// The snapshot is here under this tag already: there is nothing to do.
    pub done: bool,
    /// Objects that are still to be sent.
    #[schema(value_type = Vec<String>)]
    pub missing: Vec<Digest>,
}

/// What was imported: `POST /v1/imports/{id}/commit`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Imported {
    /// The snapshot.
    pub snapshot: SnapshotInfo,
    /// What became of it and its ancestors.
    pub snapshots: Vec<ImportedSnapshot>,
}

/// What `pack`, `unpack`, `push` and `pull` did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Transfer {
    /// Tag of the snapshot where it is now.
    pub tag: String,
    /// Its id.
    pub id: String,
    /// Where it went, or where it came from.
    pub place: String,
    /// Objects that the bundle names.
    pub objects: u64,
    /// Of these, how many were moved; the others were there.
    pub objects_moved: u64,
    /// How many bytes moved, compressed.
    pub bytes_moved: u64,
    /// What became of the snapshot and its ancestors, where it was taken in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<ImportedSnapshot>,
}

/// A tag of a hub: `tags/TAG.json`, and an element of `index.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HubTag {
    /// The tag.
    pub tag: String,
    /// Id of the snapshot.
    #[schema(value_type = String)]
    pub id: Digest,
    /// BLAKE3 of the bundle's document, which lies in `bundles/`.
    #[schema(value_type = String)]
    pub bundle: Digest,
    /// When it was pushed, seconds since the Unix epoch.
    pub pushed_at_unix: u64,
    /// Objects of the bundle.
    pub objects: u64,
    /// Their bytes before compression.
    pub bytes: u64,
    /// Image that the snapshot was booted from; for people.
    #[serde(default)]
    pub image: String,
    /// Memory of its guests.
    #[serde(default)]
    pub memory_mib: u64,
    /// How many memory layers.
    #[serde(default)]
    pub chain_depth: u32,
}
