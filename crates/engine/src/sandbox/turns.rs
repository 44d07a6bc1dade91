//! What branches of one sandbox share.

use std::sync::Arc;

use tokio::sync::{Mutex, RwLock};

/// The order of a sandbox's branches.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// Held from freezing the workload until the frozen disk top is noted, or the sandbox is paused.
    pub(crate) disk: Mutex<()>,
    /// Read by branches that are not published yet: the sandbox's row, which keeps their layers, is removed by a writer.
    pub(crate) publishing: Arc<RwLock<()>>,
}
