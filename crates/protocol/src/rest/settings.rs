//! What a sandbox is given at its fork beside the snapshot, and what of it is shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

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
}
