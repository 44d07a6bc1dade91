//! What the store hands out about the things it keeps.

use std::path::PathBuf;

use forkd_protocol::control::CpuModel;
use forkd_protocol::names::{KernelName, SandboxId};
use forkd_protocol::rest::{ImageInfo, KernelInfo, Limits, NetworkPolicy, SnapshotInfo, SnapshotTiming};
use serde::{Deserialize, Serialize};

use crate::chain::Below;
use crate::manifest::Manifest;

/// An image and where it lies. The file is never written again; its name is its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRecord {
    /// What clients see.
    pub info: ImageInfo,
    /// A raw ext4 file system, sparse.
    pub path: PathBuf,
}

/// A kernel and where it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRecord {
    /// What clients see.
    pub info: KernelInfo,
    /// bzImage or ELF.
    pub vmlinuz: PathBuf,
    /// A newc archive of its modules, uncompressed, with `modules.order.forkd`.
    pub modules: PathBuf,
    /// Hash of both files: what an init ramdisk is cached under.
    pub id: String,
}

/// A published snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRecord {
    /// What clients see.
    pub info: SnapshotInfo,
    /// Hash of its manifest: what children and chains name it by.
    pub id: String,
    /// Its layers and everything needed to restore or rebuild it.
    pub manifest: Manifest,
}

/// What only the maker of a snapshot knows about it.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotMeta {
    /// The image its guests have as their root disk.
    pub image: ImageRecord,
    /// The kernel it runs.
    pub kernel: KernelName,
    /// vCPUs of its guests.
    pub vcpus: u32,
    /// Memory of its guests.
    pub memory_mib: u64,
    /// Feature level they were shown.
    pub cpu: CpuModel,
    /// What its children may take of their host where nobody says otherwise.
    pub limits: Limits,
    /// What may leave its children where nobody says otherwise; `None` where its guests have no network device.
    pub network: Option<NetworkPolicy>,
    /// Statements that warmed the interpreter.
    pub warm: Option<String>,
    /// Where the time went.
    pub timing: SnapshotTiming,
    /// How long the source's virtual machine stood still.
    pub pause_ms: Option<f64>,
    /// How long the source's workload stood still.
    pub workload_pause_ms: Option<f64>,
    /// Sandbox it was branched from.
    pub branched_from: Option<String>,
    /// Version of the guest protocol that the agent in it speaks.
    pub agent_protocol: u32,
    /// Names of secrets that processes in its memory may have read.
    pub secrets: Vec<String>,
    /// What it lies on. `None` for a whole one: its memory is the only memory layer. Otherwise what its maker
    /// wrote is a layer over these: a page that is listed and has no data is zero.
    pub below: Option<Below>,
}

/// What a restarted controller has to know about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRow {
    /// `sb-…`.
    pub id: SandboxId,
    /// Tag of the snapshot it was forked from (the tag may be gone or re-used).
    pub snapshot_tag: String,
    /// Id of that snapshot: what it consists of stays in the store as long as the row does.
    pub snapshot_id: Option<String>,
    /// Its monitor.
    pub pid: Option<u32>,
    /// Field 22 of the monitor's `/proc/PID/stat`: a pid alone may have been given to a stranger.
    pub pid_start_ticks: Option<u64>,
    /// As in `SandboxInfo`.
    pub state: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// Limit of its cgroup.
    pub memory_limit_mib: Option<u64>,
    /// Why it ended, where it did.
    pub ended: Option<String>,
    /// How many snapshots were taken of it.
    pub branch_count: u64,
    /// Whatever else the engine wants back, as JSON.
    pub info_json: String,
}
