//! The clock of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Seconds since the Unix epoch.
pub(crate) fn unix_now() -> u64 {
    since_epoch().as_secs()
}

/// Milliseconds since the Unix epoch.
pub(crate) fn unix_now_ms() -> u64 {
    u64::try_from(since_epoch().as_millis()).unwrap_or(u64::MAX)
}
