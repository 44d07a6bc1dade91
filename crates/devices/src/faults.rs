//! Counting what guests do wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often the guest broke a device's rules; clones share one count.
#[derive(Debug, Clone, Default)]
pub struct GuestFaults(Arc<AtomicU64>);

impl GuestFaults {
    /// A counter that starts at zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts one fault.
    pub fn record(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Faults so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl From<Arc<AtomicU64>> for GuestFaults {
    fn from(counter: Arc<AtomicU64>) -> Self {
        Self(counter)
    }
}
