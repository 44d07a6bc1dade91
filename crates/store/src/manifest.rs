//! `snapshots/<id>/manifest.json`: what a snapshot consists of.

use forkd_protocol::control::CpuModel;
use forkd_protocol::rest::{Limits, NetworkPolicy, SnapshotTiming};
use serde::{Deserialize, Serialize};

/// Version of the manifest that this program writes, and the only one it reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// One layer: an extent table and the pages it lists, addressed by the hash of both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRef {
    /// BLAKE3 over its length, the hash of its extents and that of their data (docs/snapshot-format.md).
    pub hash: String,
    /// Length of the sparse file.
    pub size_bytes: u64,
    /// Bytes of data that the extents list.
    pub data_bytes: u64,
    /// How many extents.
    pub extents: u64,
}

/// The image below a snapshot's disk layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRef {
    /// Its name at the time; only for people.
    pub name: String,
    /// Its content, which names the file.
    pub hash: String,
    /// Size of the file system.
    pub size_bytes: u64,
    /// How it was made, so that the snapshot can be rebuilt.
    pub origin: String,
}

/// Everything needed to restore a snapshot, or to build it anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`MANIFEST_FORMAT`].
    pub format: u32,
    /// Makes two snapshots of equal content different ones.
    pub uuid: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// Id of the snapshot that these layers lie on.
    pub parent: Option<String>,
    /// BLAKE3 of the machine state file.
    pub state_hash: String,
    /// Length of the machine state file.
    pub state_bytes: u64,
    /// Memory layers, from base to head.
    pub memory: Vec<LayerRef>,
    /// Disk 0: what lies lowest.
    pub image: ImageRef,
    /// Disk 0: frozen layers over the image, from base to head.
    pub disk: Vec<LayerRef>,
    /// Name of the kernel.
    pub kernel: String,
    /// vCPUs.
    pub vcpus: u32,
    /// Guest memory.
    pub memory_mib: u64,
    /// Feature level shown to the guest.
    pub cpu: CpuModel,
    /// Warm-up, so that the snapshot can be rebuilt.
    pub warm: Option<String>,
    /// Version of the guest protocol that its agent speaks.
    pub agent_protocol: u32,
    /// Sandbox it was branched from.
    pub branched_from: Option<String>,
    /// How long the source stood still.
    pub pause_ms: Option<f64>,
    /// How long the source's workload stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_pause_ms: Option<f64>,
    /// What its children may take of their host where nobody says otherwise.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// What may leave its children where nobody says otherwise; absent where its guests have no network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Names of secrets that processes in its memory may have read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Where the time went.
    pub timing: SnapshotTiming,
}

impl Manifest {
    /// All layers, memory first.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &LayerRef> {
        self.memory.iter().chain(&self.disk)
    }

    /// How long a file has to be that covers the guest's memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.iter().map(|layer| layer.size_bytes).max().unwrap_or(0)
    }
}
