//! Snapshots that are being written while nobody waits, and those of which that failed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_protocol::rest::SnapshotInfo;

use super::BranchError;

/// How many failures are remembered; the oldest tags of the alphabet go first.
const REMEMBERED: usize = 1000;

/// By tag. A failure stays until its tag is used again, removed, or the controller ends.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<BTreeMap<String, SnapshotInfo>>);

impl Progress {
    pub(super) fn begin(&self, info: SnapshotInfo) {
        let mut known = self.lock();
        if known.len() >= REMEMBERED {
            known.retain(|_, info| info.status == "writing");
        }
        known.insert(info.tag.clone(), info);
    }

    pub(super) fn done(&self, tag: &str) {
        self.lock().remove(tag);
    }

    pub(super) fn failed(&self, tag: &str, why: String) {
        if let Some(info) = self.lock().get_mut(tag) {
            info.status = "failed".to_owned();
            info.warning = Some(why);
        }
    }

    /// Forgets a failure; true where there was one.
    pub(crate) fn forget_failed(&self, tag: &str) -> bool {
        let mut known = self.lock();
        let failed = known.get(tag).is_some_and(|info| info.status == "failed");
        failed && known.remove(tag).is_some()
    }

    pub(crate) fn get(&self, tag: &str) -> Option<SnapshotInfo> {
        self.lock().get(tag).cloned()
    }

    /// All of them, by tag.
    pub(crate) fn all(&self) -> Vec<SnapshotInfo> {
        self.lock().values().cloned().collect()
    }

    /// An error where this tag cannot be used yet, or never.
    pub(crate) fn check_ready(&self, tag: &str) -> Result<(), BranchError> {
        let Some(info) = self.get(tag) else { return Ok(()) };
        let what = info.warning.unwrap_or_else(|| "try again when it is ready".to_owned());
        Err(BranchError::NotReady { tag: info.tag, status: info.status, what })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SnapshotInfo>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
