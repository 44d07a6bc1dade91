//! The head of a machine state: as much of it as says whether a snapshot can be of use here. The rest is the
//! monitor's (docs/snapshot-format.md).

use forkd_protocol::control::{OLDEST_STATE_VERSION, STATE_MAGIC, STATE_VERSION};

use super::BundleError;

/// Bytes that the checksum covers together with the payload.
const HASHED: usize = 40;
const HEADER: usize = 72;

/// What a machine state says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateHead {
    pub(crate) format: u32,
    /// As CPUID names the processor that the guest was shown.
    pub(crate) vendor: String,
    pub(crate) vcpus: u32,
}

impl StateHead {
    /// Reads a whole machine state: head, length and checksum are right.
    pub(crate) fn read(state: &[u8]) -> Result<Self, BundleError> {
        let bad = |what: &str| BundleError::refused(format!("a machine state {what}"));
        let (head, payload) = state.split_at_checked(HEADER).ok_or_else(|| bad("is cut off"))?;
        if head[..8] != STATE_MAGIC {
            return Err(bad("does not begin as one"));
        }
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        check_format(word(8))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head[..HASHED]).update(payload);
        let length = u64::from(word(32)) | u64::from(word(36)) << 32;
        if length != payload.len() as u64 || hasher.finalize().as_bytes() != &head[HASHED..] {
            return Err(bad("has another length or checksum than it says"));
        }
        let vendor = std::str::from_utf8(&head[12..24]).map_err(|_| bad("names no processor"))?;
        Ok(Self { format: word(8), vendor: vendor.trim_end_matches('\0').to_owned(), vcpus: word(24) })
    }
}

/// Whether monitors of this forkd read such a state.
pub(crate) fn check_format(format: u32) -> Result<(), BundleError> {
    if format > STATE_VERSION {
        let (found, known) = (format.into(), STATE_VERSION.into());
        return Err(BundleError::Newer { what: "the machine state", found, known });
    }
    if format < OLDEST_STATE_VERSION {
        return Err(BundleError::refused(format!(
            "its machine state has version {format}, and this forkd reads {STATE_VERSION}: restore it with the forkd that made it, or make the snapshot again with `forkd snapshot`"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use forkd_testkit::written::state;

    use super::*;

    #[test]
    fn a_head_is_read_and_every_changed_byte_shows() {
        let good = state(b"AuthenticAMD", 2, b"payload");
        let head = StateHead { format: STATE_VERSION, vendor: "AuthenticAMD".to_owned(), vcpus: 2 };
        assert_eq!(StateHead::read(&good).unwrap(), head);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(StateHead::read(&bad).is_err(), "byte {at}");
            assert!(StateHead::read(&good[..at]).is_err(), "cut at {at}");
        }
        let mut newer = good;
        newer[8] = 9;
        assert!(matches!(StateHead::read(&newer), Err(BundleError::Newer { found: 9, .. })));
    }
}
