//! Who a child is: everything that two children must never share.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forkd_protocol::guest::network::GuestNetwork;
use forkd_protocol::guest::{Continuation, Identity};
use forkd_protocol::names::SandboxId;
use rand::TryRngCore;
use rand::rngs::OsRng;
use uuid::Uuid;

/// Why the host gave no entropy.
pub(crate) type EntropyError = <OsRng as TryRngCore>::Error;

/// Bytes of fresh entropy for the guest's generator.
const ENTROPY_BYTES: usize = 128;

/// A new identity, with the host's clock as it is now: send it at once.
pub(crate) fn new_identity(
    id: &SandboxId,
    env: &BTreeMap<String, String>,
    network: Option<GuestNetwork>,
) -> Result<Identity, EntropyError> {
    Ok(Identity {
        id: id.to_string(),
        hostname: id.to_string(),
        machine_id: Uuid::new_v4().simple().to_string(),
        boot_id: Uuid::new_v4().to_string(),
        entropy_base64: entropy()?,
        realtime_ns: realtime_ns(),
        env: env.clone(),
        network,
        secrets: Vec::new(),
    })
}

/// What a sandbox that was paused lacks, with the host's clock as it is now: send it at once.
pub(crate) fn new_continuation() -> Result<Continuation, EntropyError> {
    Ok(Continuation { entropy_base64: entropy()?, realtime_ns: realtime_ns() })
}

fn entropy() -> Result<String, EntropyError> {
    let mut entropy = [0u8; ENTROPY_BYTES];
    OsRng.try_fill_bytes(&mut entropy)?;
    Ok(STANDARD.encode(entropy))
}

fn realtime_ns() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_children_share_nothing() {
        let id: SandboxId = "sb-1-2".parse().unwrap();
        let (a, b) = [(), ()].map(|()| new_identity(&id, &BTreeMap::new(), None).unwrap()).into();
        assert_ne!(a.machine_id, b.machine_id);
        assert_ne!(a.boot_id, b.boot_id);
        assert_ne!(a.entropy_base64, b.entropy_base64);
        assert_eq!(a.machine_id.len(), 32);
        assert!(a.machine_id.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c)));
        assert!(STANDARD.decode(&a.entropy_base64).unwrap().len() >= 64);
        assert!(a.realtime_ns > 1_600_000_000_000_000_000);
    }
}
