//! What the tools take. The comments are what a client is told.

use std::collections::BTreeMap;

use forkd_protocol::rest::DEFAULT_TIMEOUT_SECS;
use rmcp::schemars::{self, JsonSchema};
use serde::Deserialize;

fn one() -> u32 {
    1
}

fn usual() -> u64 {
    DEFAULT_TIMEOUT_SECS
}

fn sixty() -> f64 {
    60.0
}

fn often() -> u64 {
    200
}

fn yes() -> bool {
    true
}

fn half_a_gib() -> u64 {
    512
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct OfSandbox {
    /// Id of the sandbox, such as sb-6a2f-0001
    pub(super) sandbox_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct OfSnapshot {
    /// Tag of the snapshot
    pub(super) tag: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct CreateSnapshot {
    /// Tag of the new snapshot
    pub(super) tag: String,
    /// Name of an image of the store
    #[serde(default, alias = "rootfs")]
    pub(super) image: String,
    /// Name of a kernel of the store; the newest where none is named
    #[serde(default)]
    pub(super) kernel: Option<String>,
    /// Python statements that warm the interpreter, such as `import numpy`
    #[serde(default)]
    pub(super) warm: Option<String>,
    /// Virtual processors, 1 to 8
    #[serde(default = "one")]
    pub(super) vcpus: u32,
    /// Memory in MiB, 128 to 16384
    #[serde(default = "half_a_gib")]
    pub(super) memory_mib: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Spawn {
    /// Tag of the snapshot to fork from
    pub(super) snapshot_tag: String,
    /// How many sandboxes, 1 to 1000
    #[serde(default = "one")]
    pub(super) n: u32,
    /// Most memory that each may take of its host, MiB; as for the snapshot where absent
    #[serde(default)]
    pub(super) memory_limit_mib: Option<u64>,
    /// Environment of every process in them
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
    /// End them after so many seconds
    #[serde(default)]
    pub(super) timeout_secs: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Branch {
    /// Id of the sandbox; it runs on
    pub(super) sandbox_id: String,
    /// Tag of the new snapshot; one is made up where absent
    #[serde(default)]
    pub(super) tag: Option<String>,
    /// The same as mode `diff`
    #[serde(default)]
    pub(super) diff: bool,
    /// Tell how large a snapshot of the changes alone would have been
    #[serde(default)]
    pub(super) measure_diff: bool,
    /// full, diff or live; live where absent
    #[serde(default)]
    pub(super) mode: Option<String>,
    /// False answers as soon as the sandbox runs on; its snapshot becomes ready later
    #[serde(default = "yes")]
    pub(super) wait: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ForkSandbox {
    /// Id of the sandbox whose state the children continue; it runs on
    pub(super) sandbox_id: String,
    /// How many children, 1 to 1000
    #[serde(default = "one")]
    pub(super) n: u32,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Exec {
    /// Id of the sandbox
    pub(super) sandbox_id: String,
    /// Program and arguments; for a shell line: ["sh", "-c", "…"]
    pub(super) args: Vec<String>,
    /// Kill it and all it started after so many seconds
    #[serde(default = "usual")]
    pub(super) timeout_secs: u64,
    /// Working directory
    #[serde(default)]
    pub(super) cwd: Option<String>,
    /// Added to its environment
    #[serde(default)]
    pub(super) env: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Eval {
    /// Id of the sandbox
    pub(super) sandbox_id: String,
    /// A Python expression, or statements; names stay defined for the next call
    pub(super) code: String,
    /// Interrupt it after so many seconds
    #[serde(default = "usual")]
    pub(super) timeout_secs: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WaitForText {
    /// Id of the sandbox
    pub(super) sandbox_id: String,
    /// File in the sandbox
    pub(super) path: String,
    /// Text to wait for in its last 4096 bytes
    pub(super) marker: String,
    /// Give up after so many seconds, at most 3600
    #[serde(default = "sixty")]
    pub(super) timeout_secs: f64,
    /// How often to look
    #[serde(default = "often")]
    pub(super) poll_interval_ms: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct OfPath {
    /// Id of the sandbox
    pub(super) sandbox_id: String,
    /// Path in the sandbox
    pub(super) path: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct WriteFile {
    /// Id of the sandbox
    pub(super) sandbox_id: String,
    /// Path in the sandbox; folders on the way are made
    pub(super) path: String,
    /// What to write: text, or base64 where `base64` is true
    pub(super) content: String,
    /// Whether the content is base64
    #[serde(default)]
    pub(super) base64: bool,
}
