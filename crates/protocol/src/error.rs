//! What kind of failure an error is, for those who must react to it without knowing it.

use serde::{Deserialize, Serialize};

/// The kinds of failure. The controller alone turns one into an HTTP status, the command line alone into an
/// exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorClass {
    /// The request is wrong; asking again changes nothing.
    Caller,
    /// What it names does not exist.
    NotFound,
    /// It exists already, is in use, or is not in a state for this.
    Conflict,
    /// Memory, disk, slots or a cap; works again once there is room.
    Exhausted,
    /// This host cannot do it: no KVM, another CPU, a missing tool.
    HostUnfit,
    /// The guest failed, stalled or answered nonsense.
    GuestFault,
    /// Stored data is damaged.
    Corrupt,
    /// Everything else: a fault of forkd or its surroundings.
    Internal,
}
