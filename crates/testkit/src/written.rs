//! What a monitor writes, without a monitor (docs/snapshot-format.md).

use forkd_protocol::control::{STATE_MAGIC, STATE_VERSION};

/// A machine state whose head and checksum are right, over a payload that nobody reads.
#[must_use]
pub fn state(vendor: &[u8; 12], vcpus: u32, payload: &[u8]) -> Vec<u8> {
    let mut state = STATE_MAGIC.to_vec();
    state.extend_from_slice(&STATE_VERSION.to_le_bytes());
    state.extend_from_slice(vendor);
    state.extend_from_slice(&vcpus.to_le_bytes());
    state.extend_from_slice(&[0; 4]);
    state.extend_from_slice(&(payload.len() as u64).to_le_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&state).update(payload);
    state.extend_from_slice(hasher.finalize().as_bytes());
    state.extend_from_slice(payload);
    state
}

/// Runs of sorted pages: the first of each, and how many.
#[must_use]
pub fn runs(pages: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((first, length)) if *first + *length == page => *length += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}

/// An extent table, whatever it lists.
#[must_use]
pub fn table(runs: &[(u64, u64)]) -> Vec<u8> {
    let mut table = b"FKDX\x01\0\0\0".to_vec();
    table.extend((runs.len() as u64).to_le_bytes());
    for (first, pages) in runs {
        table.extend(first.to_le_bytes());
        table.extend(pages.to_le_bytes());
    }
    table
}
