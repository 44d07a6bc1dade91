//! What sandboxes and their host use.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a sandbox uses right now. Of what is absent the host keeps no account: it has no cgroup v2.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SandboxStats {
    /// Which sandbox.
    #[serde(default)]
    pub id: String,
    /// Private memory of the monitor outside the guest's mappings, bytes.
    pub monitor_private_bytes: u64,
    /// Guest memory that this sandbox changed, bytes.
    pub guest_private_bytes: u64,
    /// Guest memory that it shares with its snapshot, bytes.
    pub guest_shared_bytes: u64,
    /// Page tables of the monitor, bytes.
    #[serde(default)]
    pub page_table_bytes: u64,
    /// Memory that is charged to its cgroup, bytes: what a memory limit is held against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_charged_bytes: Option<u64>,
    /// The memory limit in force, bytes; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_bytes: Option<u64>,
    /// Processor time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuStats>,
    /// Traffic of the store's disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStats>,
    /// Threads and processes on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// Network traffic, where it has a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<NetStats>,
}

/// Processor time since the sandbox began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct CpuStats {
    /// Used, microseconds.
    pub used_us: u64,
    /// Time for which it was held back by its limit, microseconds.
    pub throttled_us: u64,
}

/// Disk traffic since the sandbox began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct IoStats {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub read_ops: u64,
    /// Write operations.
    pub write_ops: u64,
}

/// Network traffic since the sandbox began or was last resumed, as the guest sees it, but for what its rules kept back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct NetStats {
    /// Bytes that it received.
    pub rx_bytes: u64,
    /// Bytes that it sent.
    pub tx_bytes: u64,
    /// Packets that it received.
    pub rx_packets: u64,
    /// Packets that it sent.
    pub tx_packets: u64,
}

/// `GET /v1/stats`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct AllStats {
    /// What is promised and what is there.
    pub room: HostRoom,
    /// Each sandbox that runs.
    pub sandboxes: Vec<SandboxStats>,
}

/// What a new fork is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct HostRoom {
    /// Memory of the host, bytes.
    pub memory_total_bytes: u64,
    /// Memory of it that is free or can be made so, bytes.
    pub memory_available_bytes: u64,
    /// Memory that is promised to sandboxes: their limit, or where they have none the memory of their guest; bytes.
    pub memory_promised_bytes: u64,
    /// How much may be promised, bytes.
    pub memory_promisable_bytes: u64,
    /// Sandboxes that count: all but paused and ended ones.
    pub sandboxes: u64,
    /// How many there may be.
    pub max_sandboxes: u64,
    /// Free bytes of the store's file system.
    pub disk_free_bytes: u64,
}
