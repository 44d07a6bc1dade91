//! Clients to controller: the v1 surface.
//!
//! Field names are those that published forkd clients read; what is ours is optional or additional.

mod access;
mod audit;
mod bundle;
mod chain;
mod event;
mod host;
mod image;
mod jail;
mod limits;
mod network;
mod publish;
mod refresh;
mod secret;
mod settings;
mod stats;
mod workspace;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use self::access::{
    CreateToken, CreatedToken, MAX_QUOTA, Quota, Scope, ScopeError, TenantInfo, TokenInfo, Usage,
};
pub use self::audit::{AuditLine, AuditReport};
pub use self::bundle::{
    BUNDLE_KIND, BUNDLE_VERSION, Bundle, BundleFile, BundleKernel, BundleSnapshot, Contents, Fate, HubTag,
    ImportStatus, Imported, ImportedSnapshot, KernelContents, MAX_BUNDLE_BYTES, PIECE_BYTES, Transfer,
    longest_object,
};
pub use self::chain::{
    CollectGarbage, CompactSnapshot, Damage, GarbageItem, GarbageReport, LayerInfo, RemoveSnapshot,
    SnapshotInfoDetail, VerifyReport, VerifySnapshots,
};
pub use self::event::{EventInfo, EventKind};
pub use self::host::HostCounts;
pub use self::image::ImageOfSnapshot;
pub use self::jail::{JailCheck, JailReport};
pub use self::limits::{Cpus, CpusError, IoLimits, Limits};
pub use self::network::{
    Destination, DomainPattern, Egress, KBIT, MAX_DESTINATIONS, MAX_PORT_RANGES, NetworkPolicy, PolicyError,
    Ports, Target, Transport,
};
pub use self::publish::{MAX_PUBLISHED, Publish, PublishParseError, Published};
pub use self::refresh::RefreshSnapshot;
pub use self::secret::{
    GiveSecretsRequest, MAX_SECRET_BYTES, MAX_SECRETS, SecretValue, SecretValues, ShownSecret,
};
pub use self::settings::{
    MAX_LIFETIME_SECS, MAX_METADATA, MAX_METADATA_BYTES, OnTimeout, SandboxSettings, ShownSettings,
};
pub use self::stats::{AllStats, CpuStats, HostRoom, IoStats, NetStats, SandboxStats};
pub use self::workspace::{CreateWorkspace, SuspendWorkspace, WorkspaceInfo};
use crate::control::CpuModel;

/// Most children of one request.
pub const MAX_CHILDREN: u32 = 1000;
/// Longest bound of an exec or eval, seconds: a year.
pub const MAX_TIMEOUT_SECS: u64 = 31_536_000;
/// Longest bound of a warm-up, seconds: a day.
pub const MAX_WARM_TIMEOUT_SECS: u64 = 86_400;
/// Default bound of an exec or eval, seconds.
pub const DEFAULT_TIMEOUT_SECS: u64 = 30;

fn one() -> u32 {
    1
}

fn default_timeout() -> u64 {
    DEFAULT_TIMEOUT_SECS
}

/// The one shape of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What happened, to what, what to do.
    pub error: String,
    /// For the machine, such as `not_found`, `tag_taken`, `guest_did_not_freeze`.
    pub code: String,
    /// Children of a fork that failed, where that is what happened.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// The `error` event of a request that reports its progress: what the status line can no longer say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorEvent {
    /// HTTP status the request would have had.
    pub status: u16,
    /// The rest.
    #[serde(flatten)]
    pub body: ErrorBody,
}

/// `GET /healthz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Healthz {
    /// Always true.
    pub ok: bool,
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxInfo {
    /// `sb-…`.
    pub id: String,
    /// Tag of the snapshot it was forked from.
    pub snapshot_tag: String,
    /// Id of that snapshot: the tag may name another one by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// Its network namespace, where it has one.
    pub netns: Option<String>,
    /// Where forkd's published Python client reaches it, by a protocol of its own, on loopback of its host; empty where a
    /// token is demanded, which that protocol knows none of.
    pub guest_addr: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// Its monitor.
    pub pid: Option<u32>,
    /// Limit of its cgroup: the same as in `limits`, for published clients.
    pub memory_limit_mib: Option<u64>,
    /// What it may take of its host.
    #[serde(default)]
    pub limits: Limits,
    /// Memory of its guest.
    #[serde(default)]
    pub guest_memory_mib: u64,
    /// Whether a snapshot was ever taken of it.
    pub has_branched: bool,
    /// Memory layer of its newest branch.
    pub last_branch_memory_path: Option<String>,
    /// How many snapshots were taken of it.
    pub branch_count: u64,
    /// `starting`, `running`, `pausing`, `paused`, `resuming`, `stopping`, `ended`.
    pub state: String,
    /// Why it ended, where it did.
    pub ended: Option<String>,
    /// How long its fork took.
    pub timing: ForkTiming,
    /// What may leave it; `none` where it has no network, absent where its guest has no network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Whose it is; absent where it belongs to nobody but the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What it was given beside its snapshot.
    #[serde(flatten)]
    pub settings: ShownSettings,
}

/// Where the time of one fork went, microseconds since the request was taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ForkTiming {
    /// The monitor process runs and was handed its descriptors.
    pub started_us: u64,
    /// The vCPUs run.
    pub restored_us: u64,
    /// The agent answered with its new identity.
    pub answered_us: u64,
}

/// Fork children from a snapshot, or from a sandbox that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSandboxes {
    /// Which snapshot; empty where `from_sandbox` is given.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub snapshot_tag: String,
    /// Which sandbox: it is branched first, and the children are those of the new snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_sandbox: Option<String>,
    /// How many, 1 to 1000.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    pub n: u32,
    /// Accepted for published clients: every sandbox has a namespace of its own once it has a network.
    #[serde(default)]
    pub per_child_netns: bool,
    /// Memory limit of each child's cgroup: the same as in `limits`, from published clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
    /// What each child may take of its host. What is absent is as for the source.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Accepted for published clients; children are always warm.
    #[serde(default)]
    pub prewarm: bool,
    /// Accepted for published clients; forks are always live.
    #[serde(default)]
    pub live_fork: bool,
    /// Accepted for published clients.
    #[serde(default)]
    pub hugepages: bool,
    /// Environment of every later process in the children.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What may leave the children: a word, a list or an object (docs/network.md). Where absent, as for the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Whose they are; only an administrator may say so, a tenant's token says it by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Secrets of each child, by name: files in `/run/secrets` that no snapshot has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: SecretValues,
    /// With `from_sandbox`: also where that one holds secrets, which the children then have, too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_secrets: bool,
    /// Ports of the child at addresses of its host; of one child only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub publish: Vec<Publish>,
    /// What concerns forkd and not the guest.
    #[serde(flatten)]
    pub settings: SandboxSettings,
}

impl CreateSandboxes {
    /// One child of a snapshot, without any wishes.
    pub fn of(snapshot_tag: impl Into<String>) -> Self {
        Self {
            snapshot_tag: snapshot_tag.into(),
            from_sandbox: None,
            n: 1,
            per_child_netns: true,
            memory_limit_mib: None,
            limits: Limits::default(),
            prewarm: false,
            live_fork: false,
            hugepages: false,
            env: BTreeMap::new(),
            network: None,
            tenant: None,
            secrets: SecretValues::new(),
            with_secrets: false,
            publish: Vec::new(),
            settings: SandboxSettings::default(),
        }
    }
}

/// How the memory of a running sandbox is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum BranchMode {
    /// All of it while the sandbox stands still: a snapshot that lies on no other.
    Full,
    /// What it changed, while it stands still.
    Diff,
    /// What it changed, while it runs on.
    #[default]
    Live,
}

impl BranchMode {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Diff => "diff",
            Self::Live => "live",
        }
    }
}

/// Make a snapshot of a running sandbox, which runs on.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct BranchRequest {
    /// Name of the snapshot; one is made up where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// How; `live` where nothing says otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<BranchMode>,
    /// The same as `mode: diff`, from published clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<bool>,
    /// The same as `mode: live`, from published clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<bool>,
    /// A full snapshot that tells how large one of the changes would have been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measure_diff: Option<bool>,
    /// False answers as soon as the sandbox runs on; only for live ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<bool>,
    /// Of published clients: the tag that the sandbox was forked from. Any other is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tag: Option<String>,
    /// Also where the sandbox holds secrets, which its processes may have read into the memory that is written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_secrets: bool,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotInfo {
    /// Its name.
    pub tag: String,
    /// Hash of its manifest: another snapshot of this tag has another one.
    #[serde(default)]
    pub id: String,
    /// Id of the snapshot that its source was forked from, where it lies on that one's layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_id: Option<String>,
    /// Tag of that snapshot, where it still has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_tag: Option<String>,
    /// How many memory layers it consists of; 1 is flat.
    #[serde(default = "one")]
    pub chain_depth: u32,
    /// Its folder in the store.
    pub dir: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// `ready`; `writing` or `failed` for a branch that nobody waited for.
    pub status: String,
    /// Whether children can be forked from it.
    pub bootable: bool,
    /// Sandbox it was branched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<String>,
    /// How long the source's virtual machine stood still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_ms: Option<f64>,
    /// How long the source's workload stood still, from freezing to thawing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_pause_ms: Option<f64>,
    /// How long the changed pages took to be counted, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_ms: Option<f64>,
    /// Bytes of changed pages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_logical_bytes: Option<u64>,
    /// Bytes of them that are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff_physical_bytes: Option<u64>,
    /// Something to know about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Image it was booted from.
    pub image: String,
    /// What the content of that image hashes to; an image of this name may be another one by now.
    #[serde(default)]
    pub image_hash: String,
    /// Kernel it runs.
    pub kernel: String,
    /// vCPUs of its guests.
    pub vcpus: u32,
    /// Memory of its guests.
    pub memory_mib: u64,
    /// Names of secrets that processes in its memory may have read. Their files are not in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// What its children may take of their host where nobody says otherwise: as the sandbox that it was taken of.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Bytes of memory that are stored.
    pub memory_physical_bytes: u64,
    /// What its memory layer hashes to (docs/snapshot-format.md).
    pub memory_hash: String,
    /// Where the time went.
    pub timing: SnapshotTiming,
    /// What may leave its children where nobody says otherwise; absent where its guests have no network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
    /// Whose it is; absent for shared ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
}

/// Where the time of making a snapshot went, milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SnapshotTiming {
    /// Until the agent of the parent answered.
    pub boot_ms: u64,
    /// The warm-up.
    pub warm_ms: u64,
    /// Freezing, saving and writing.
    pub write_ms: u64,
}

/// Boot an image, warm it up, freeze it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateSnapshot {
    /// Name of the snapshot.
    pub tag: String,
    /// Name of an image in the store (published clients send a path as `rootfs`).
    #[serde(default, alias = "rootfs")]
    pub image: String,
    /// Name of a kernel in the store; the newest where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Python statements that warm the interpreter; none starts no interpreter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<String>,
    /// 1 to 8.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 8)]
    pub vcpus: u32,
    /// 128 to 16384.
    #[serde(default = "default_memory")]
    #[schema(minimum = 128, maximum = 16384)]
    pub memory_mib: u64,
    /// Feature level shown to the guest.
    #[serde(default)]
    #[schema(value_type = String)]
    pub cpu: CpuModel,
    /// Give up the warm-up after this long.
    #[serde(default = "default_warm_timeout")]
    #[schema(maximum = 86_400)]
    pub warm_timeout_secs: u64,
    /// What may leave the parent, and its children where they are not told otherwise; `allow` where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkPolicy>,
}

fn default_memory() -> u64 {
    512
}

fn default_warm_timeout() -> u64 {
    600
}

/// Run a command to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecRequest {
    /// Program and arguments.
    #[schema(min_items = 1)]
    pub args: Vec<String>,
    /// Kill the whole tree after this long.
    #[serde(default = "default_timeout")]
    #[schema(maximum = 31_536_000)]
    pub timeout_secs: u64,
    /// Added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// User name or uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Standard input, base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin_base64: Option<String>,
}

impl ExecRequest {
    /// A command as the image has its processes, bounded in seconds.
    pub fn of(args: impl IntoIterator<Item: Into<String>>, timeout_secs: u64) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            timeout_secs,
            env: BTreeMap::new(),
            cwd: None,
            user: None,
            stdin_base64: None,
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExecResponse {
    /// Text; bytes that are not UTF-8 are replaced (then `stdout_base64` has them all).
    pub stdout: String,
    /// Likewise.
    pub stderr: String,
    /// Exit code; -1 where a signal ended it.
    pub exit_code: i32,
    /// The exact bytes, where they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    /// Likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// Signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// Output was longer than one answer carries; stream it instead.
    pub truncated: bool,
    /// It was killed at its timeout.
    pub timed_out: bool,
    /// How long it took in the guest, microseconds; 0 where its agent does not tell.
    #[serde(default)]
    pub micros: u64,
}

/// Evaluate in the warm interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalRequest {
    /// An expression, or statements.
    pub code: String,
    /// Interrupt after this long.
    #[serde(default = "default_timeout")]
    #[schema(maximum = 31_536_000)]
    pub timeout_secs: u64,
}

/// What evaluating gave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalResponse {
    /// `repr` of the value.
    pub result: Option<String>,
    /// `Type: message` of the exception.
    pub error: Option<String>,
    /// 0, or 1 with an error.
    pub exit_code: i32,
    /// The value as JSON text, where it has one.
    pub result_json: Option<String>,
    /// Formatted traceback.
    pub traceback: Option<String>,
    /// Printed text.
    pub stdout: String,
    /// Printed text.
    pub stderr: String,
    /// It was interrupted at its timeout.
    pub timed_out: bool,
    /// Something was longer than one answer carries.
    pub truncated: bool,
    /// Time in the interpreter.
    pub micros: u64,
}

/// What a ping brings back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PingResponse {
    /// Always true.
    pub pong: bool,
    /// Version of numpy in the warm interpreter.
    pub numpy_version: Option<String>,
    /// Always 1: the agent.
    pub pid: u32,
    /// Language of the warm interpreter.
    pub agent_lang: String,
    /// Whether the interpreter is warm.
    pub warmup_ready: bool,
    /// Version of the agent.
    pub agent: String,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageInfo {
    /// Its name.
    pub name: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// Size of the file system.
    pub size_bytes: u64,
    /// Bytes on disk.
    pub physical_bytes: u64,
    /// What its content hashes to (docs/snapshot-format.md).
    pub hash: String,
    /// How it was made, such as `debian bookworm: python3-minimal, python3-numpy`.
    pub origin: String,
}

/// A kernel with its modules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KernelInfo {
    /// Its name.
    pub name: String,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// BLAKE3 of the kernel image.
    pub hash: String,
}

/// `GET /version`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VersionInfo {
    /// Version of forkd.
    pub version: String,
    /// Always `v1`.
    pub api: String,
}
