//! What is on a host that sandboxes could leave behind.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /v1/host`: counts of the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HostCounts {
    /// The controller that counted.
    pub controller_pid: u32,
    /// When it started, in clock ticks since the boot of the host: with its pid it means that very process.
    pub controller_start_ticks: u64,
    /// Namespaces (net, mnt, pid, ipc, uts, user) that some process is in or a mount keeps.
    pub namespaces: u64,
    /// Taps in the controller's network namespace.
    pub taps: u64,
    /// Ends of veth pairs there.
    pub veths: u64,
    /// Mounts that the controller sees.
    pub mounts: u64,
    /// Descriptors that the controller has open.
    pub descriptors: u64,
    /// Cgroups of this store's monitors.
    pub cgroups: u64,
    /// Monitors that run, also those that wait.
    pub processes: u64,
    /// Children of the controller that ended and were not collected.
    pub zombies: u64,
    /// Rules of nftables; absent where there is no `nft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nft_rules: Option<u64>,
    /// Run folders, also of monitors that wait.
    pub run_folders: u64,
    /// Bytes that the store takes on its disk.
    pub disk_bytes: u64,
    /// Memory of the controller that is no file's, bytes.
    pub controller_bytes: u64,
}
