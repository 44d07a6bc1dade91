//! The saved form of the balloon.

use serde::{Deserialize, Serialize};

/// What was given back needs no note: it is not among the pages that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalloonStateV1 {
    /// Pages that the driver says are in the balloon.
    pub actual: u32,
}
