//! Identities of sandboxes: `sb-<hex unix seconds>-<hex sequence>`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forkd_protocol::names::{NameError, SandboxId};

/// Longest id made here; paths of sockets are planned for it.
pub(crate) const MAX_ID_LEN: usize = "sb-00000000ffffffff-ffffffff".len();

/// Makes ids that no other life of this or another controller made.
#[derive(Debug)]
pub(crate) struct Ids {
    next: AtomicU32,
}

impl Ids {
    /// Starts anywhere, so that two controllers (or one, restarted within a second) do not meet.
    pub(crate) fn new() -> Self {
        Self { next: AtomicU32::new(rand::random()) }
    }

    /// An id for a sandbox.
    pub(crate) fn sandbox(&self) -> Result<SandboxId, NameError> {
        self.next("sb")
    }

    /// An id for a parent that is being warmed; it has a folder like a sandbox, but is none.
    pub(crate) fn parent(&self) -> Result<SandboxId, NameError> {
        self.next("pa")
    }

    /// An id for a monitor that waits; it has a folder like a sandbox, and is to become one.
    pub(crate) fn waiting(&self) -> Result<SandboxId, NameError> {
        self.next("wm")
    }

    fn next(&self, kind: &str) -> Result<SandboxId, NameError> {
        format!("{kind}-{:x}-{:x}", unix_now(), self.next.fetch_add(1, Ordering::Relaxed)).parse()
    }
}

/// Seconds since the Unix epoch.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_valid_short_and_never_repeat() {
        let ids = Ids { next: AtomicU32::new(u32::MAX - 10) };
        let made: HashSet<String> = (0..1000).map(|_| ids.sandbox().unwrap().to_string()).collect();
        assert_eq!(made.len(), 1000);
        assert!(made.iter().all(|id| id.starts_with("sb-") && id.len() <= MAX_ID_LEN));
        assert!(ids.parent().unwrap().as_str().starts_with("pa-"));
    }
}
