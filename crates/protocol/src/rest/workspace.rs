//! Workspaces: sandboxes with a name, which survive.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Make a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateWorkspace {
    /// What it is called: 1 to 64 of A-Z a-z 0-9 _ -.
    pub name: String,
    /// The snapshot that it begins with.
    pub snapshot_tag: String,
    /// Accepted for published clients.
    #[serde(default)]
    pub per_child_netns: bool,
    /// Memory limit of its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
}

/// Suspend a workspace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SuspendWorkspace {
    /// Accepted for published clients: what changed is all that is ever written.
    pub diff: bool,
}

/// A workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceInfo {
    /// `ws-…`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whose it is; absent where it belongs to nobody but the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The snapshot that it began with.
    pub source_snapshot_tag: String,
    /// Always absent: what a suspended workspace lies on has no tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_state_tag: Option<String>,
    /// `running`, `suspended`, or `stale`: its sandbox is gone.
    pub status: String,
    /// Its sandbox, where that is there.
    pub live_sandbox_id: Option<String>,
    /// Seconds since the Unix epoch.
    pub created_at_unix: u64,
    /// When it was last made, suspended or resumed, seconds since the Unix epoch.
    pub last_active_unix: u64,
    /// Memory layer of its newest branch.
    pub last_branch_memory_path: Option<String>,
}
