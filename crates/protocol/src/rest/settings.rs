//! What a sandbox is given at its fork beside the snapshot, and what of it is shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Published, ShownSecret};

/// Longest time that can be asked for: a year.
pub const MAX_LIFETIME_SECS: u64 = 365 * 24 * 3600;
/// Most entries of `metadata`.
pub const MAX_METADATA: usize = 64;
/// Most bytes of one of its keys or values.
pub const MAX_METADATA_BYTES: usize = 4096;

/// What becomes of a sandbox whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// It ends.
    #[default]
    Kill,
    /// It is taken to the disk.
    Pause,
}

/// Wishes of a fork that concern forkd and not the guest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct SandboxSettings {
    /// Labels: shown, and what lists can be filtered by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// It lives this long, seconds, unless that is changed meanwhile; for ever where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u64>,
    /// What becomes of it then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// Whether traffic to a paused one continues it, for as long as it was last given.
    #[serde(default)]
    pub auto_resume: bool,
    /// It is paused once nobody has used it for this long, seconds: no call, no open connection, and nothing runs in it
    /// that was started by a call. With `auto_resume` the next use continues it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
}

/// What of a sandbox's settings everybody may see.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ShownSettings {
    /// Its labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// When its time is over, milliseconds since the Unix epoch; absent for one that lives until it is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at_unix_ms: Option<u64>,
    /// What becomes of it then.
    #[serde(default)]
    pub on_timeout: OnTimeout,
    /// Whether traffic continues it where it is paused.
    #[serde(default)]
    pub auto_resume: bool,
    /// After how long without use it is paused, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
    /// Its ports at addresses of its host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// Its secrets, without their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<ShownSecret>,
}
