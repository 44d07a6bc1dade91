//! Snapshots as chains: what they consist of, flattening, cleaning up, checking.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One layer of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayerInfo {
    /// What its extents and their data hash to (docs/snapshot-format.md).
    pub hash: String,
    /// Bytes that it lists.
    pub logical_bytes: u64,
    /// Bytes on disk.
    pub physical_bytes: u64,
    /// How many extents.
    pub extents: u64,
}

/// `GET /v1/snapshots/{tag}/info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotInfoDetail {
    /// Its name.
    pub tag: String,
    /// Hash of its manifest.
    pub id: String,
    /// Its folder in the store.
    pub dir: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// Memory of its guests.
    pub memory_logical_bytes: u64,
    /// Its memory layers on disk.
    pub memory_physical_bytes: u64,
    /// The merged file that children map, on disk; derived from the layers.
    pub view_physical_bytes: u64,
    /// Size of its disk.
    pub disk_logical_bytes: u64,
    /// Its disk layers on disk, without the image.
    pub disk_physical_bytes: u64,
    /// Its machine state.
    pub vmstate_bytes: u64,
    /// Tag of the snapshot whose layers it lies on, where that still has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tag: Option<String>,
    /// Id of that snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_content_hash: Option<String>,
    /// How many memory layers; 1 is flat.
    pub chain_depth: u32,
    /// Snapshots it descends from, the nearest first: tags, or the id of one that has none any more, which is
    /// where it ends.
    pub ancestors: Vec<String>,
    /// Tags of the snapshots that descend from it.
    pub dependents: Vec<String>,
    /// Memory layers, from base to head.
    pub memory_layers: Vec<LayerInfo>,
    /// Disk layers over the image, from base to head.
    pub disk_layers: Vec<LayerInfo>,
    /// Image it was booted from.
    pub image: String,
    /// What the content of that image hashes to.
    pub image_hash: String,
    /// Kernel it runs.
    pub kernel: String,
    /// Version of the guest protocol that its agent speaks.
    pub agent_protocol: u32,
    /// Names of secrets that processes in its memory may have read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Version of its machine state; absent where that is none of forkd's monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_format: Option<u32>,
}

/// Make a flat snapshot of one that lies on others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CompactSnapshot {
    /// Tag of the flat one.
    pub to: String,
}

/// What removing a snapshot does about those that descend from it; nothing asked for is a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct RemoveSnapshot {
    /// Remove them, too.
    #[serde(default)]
    pub cascade: bool,
    /// Leave them; layers that they name stay.
    #[serde(default)]
    pub force: bool,
}

/// `POST /v1/gc`, in the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CollectGarbage {
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// Something that nothing names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GarbageItem {
    /// `layer`, `image`, `snapshot`, or `import`: a bundle that nobody goes on taking in.
    pub kind: String,
    /// Its hash.
    pub name: String,
    /// Bytes on disk.
    pub bytes: u64,
}

/// What was removed, or would be.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct GarbageReport {
    /// Nothing was removed.
    pub dry_run: bool,
    /// What nothing names.
    pub items: Vec<GarbageItem>,
    /// Their bytes on disk.
    pub bytes: u64,
}

/// Hash stored content again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct VerifySnapshots {
    /// Which snapshot; all where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Make the views again, whether they are right or not.
    #[serde(default)]
    pub rebuild_views: bool,
}

/// Something stored that is not what its name says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Damage {
    /// `manifest`, `state`, `image`, `memory layer`, `disk layer` or `view`.
    pub kind: String,
    /// The file.
    pub path: String,
    /// What is wrong with it.
    pub error: String,
    /// The snapshots that need it, and paused sandboxes, by id.
    pub tags: Vec<String>,
}

/// What verifying found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct VerifyReport {
    /// How many snapshots were looked at; a paused sandbox counts as one.
    pub snapshots: u64,
    /// How many files were hashed; what several snapshots share is hashed once.
    pub files: u64,
    /// How many views were made again.
    pub views_rebuilt: u64,
    /// What is damaged.
    pub damage: Vec<Damage>,
}
