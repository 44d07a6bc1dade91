//! This computer: what it has, and which way forkd runs on it. `forkd doctor` shows it, and what starts a
//! controller does as it says.

mod facts;
mod probe;
mod report;

use facts::Facts;
pub(crate) use probe::probe;
pub(crate) use report::{Report, Verdict, Way};

/// Looks at everything. Blocks.
pub(crate) fn look() -> Report {
    Report::from(&Facts::gather(probe::afresh()))
}

/// The same, but KVM is not tried again where nothing that it depends on has changed. Blocks.
pub(crate) fn look_again() -> Report {
    Report::from(&Facts::gather(probe()))
}
