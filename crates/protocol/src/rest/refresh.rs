//! Making a snapshot again.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::default_warm_timeout;

/// Make a snapshot again from its recorded image and warm-up, with the kernel, agent and monitor of now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RefreshSnapshot {
    /// Name of the new one; where absent it takes the tag of the old one, when it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Name of a kernel in the store; the newest where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Give up the warm-up after this long.
    #[serde(default = "default_warm_timeout")]
    #[schema(maximum = 86_400)]
    pub warm_timeout_secs: u64,
}
