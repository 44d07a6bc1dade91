//! Images out of snapshots.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Make an image of what the disk of a snapshot holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageOfSnapshot {
    /// Name of the image; what had it is replaced.
    pub name: String,
    /// How it came to be, for people and for whoever wants to know whether it is to be made again.
    #[serde(default)]
    pub origin: String,
}
