//! Counting what sandboxes could leave behind on this host.

use std::process::{Command, Stdio};

use forkd_host::census;
use forkd_protocol::rest::HostCounts;

use crate::engine::{Engine, blocking};
use crate::error::{EngineError, OpenError};
use crate::monitor::MonitorError;

/// What the kernel calls monitors.
const MONITOR: &str = "forkd-vmm";

impl Engine {
    /// Counts what there is on this host that sandboxes could leave behind.
    ///
    /// # Errors
    /// /proc, /sys or the store cannot be read.
    pub async fn host_counts(&self) -> Result<HostCounts, EngineError> {
        let (root, cgroups) = (self.root().to_owned(), self.shared.launcher.cgroups().clone());
        let counting = blocking(move || -> Result<_, EngineError> {
            let counts = census::count(&root, MONITOR);
            let counts = counts.map_err(|source| OpenError::Host { path: "/proc".into(), source })?;
            let cgroups = cgroups.leaves().map_err(MonitorError::from)?.len() as u64;
            Ok(HostCounts { cgroups, nft_rules: nft_rules(), ..counts })
        });
        counting.await?
    }
}

/// Nobody waits for this on the path of a fork, so the tool will do. It lists one rule, set or chain a line.
fn nft_rules() -> Option<u64> {
    let listed = Command::new("nft")
        .args(["--stateless", "list", "ruleset"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    listed.status.success().then(|| listed.stdout.iter().filter(|byte| **byte == b'\n').count() as u64)
}
