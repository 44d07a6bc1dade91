//! The saved form of the entropy device.

use serde::{Deserialize, Serialize};

/// Nothing is kept: above all no randomness, which two clones would share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RngStateV1 {}
