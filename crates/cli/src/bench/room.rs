//! How much memory there is where the sandboxes run, so that a benchmark stops before it takes all of it.

use crate::client::Client;
use crate::machine::{self, Ssh};

/// Left alone: the controller, the kernel and everybody else need some.
const RESERVE_MIB: u64 = 256;

/// Where the controller of a client runs.
#[derive(Debug)]
pub(super) enum Place {
    /// On this computer.
    Here,
    /// In the machine.
    Machine(Ssh),
    /// Somewhere else: nothing is known about it.
    Elsewhere,
}

impl Place {
    /// Of the controller that `client` speaks to.
    pub(super) fn of(client: &Client) -> Self {
        let endpoint = client.endpoint();
        let found = machine::record_at(&endpoint).ok().flatten();
        match found.map(|(dirs, record)| Ssh::to(&dirs, &record)) {
            Some(Ok(ssh)) => Self::Machine(ssh),
            Some(Err(_)) => Self::Elsewhere,
            None if is_local(&endpoint) => Self::Here,
            None => Self::Elsewhere,
        }
    }

    /// Memory that can be had there without taking it from others, MiB. Blocks.
    pub(super) fn available_mib(&self) -> Option<u64> {
        let text = match self {
            Self::Here => std::fs::read_to_string("/proc/meminfo").ok()?,
            Self::Machine(ssh) => String::from_utf8(ssh.run("cat /proc/meminfo").ok()?.stdout).ok()?,
            Self::Elsewhere => return None,
        };
        machine::available_mib(&text)
    }
}

fn is_local(endpoint: &str) -> bool {
    ["http://127.", "http://localhost", "http://[::1]", "unix:"].iter().any(|p| endpoint.starts_with(p))
}

/// Why `n` children that take `each_bytes` do not fit into what is left; `None` where they do.
pub(super) fn refusal(n: u32, each_bytes: u64, available_mib: u64) -> Option<String> {
    let need = (each_bytes.saturating_mul(n.into()) >> 20).saturating_add(RESERVE_MIB);
    (need > available_mib).then(|| {
        format!("{n} children would need about {need} MiB where {available_mib} MiB are left; give the machine more (`forkd machine start --memory-mib`)")
    })
}

/// What the host has less than before, per child; others may have given something back meanwhile.
pub(super) fn used(before: Option<u64>, after: Option<u64>, n: u32) -> Option<u64> {
    let less = before?.checked_sub(after?).filter(|less| *less > 0)?;
    (less << 20).checked_div(n.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_figures() {
        assert_eq!(refusal(30, 20 << 20, 4000), None);
        let text = refusal(100, 50 << 20, 4000).unwrap();
        assert!(text.contains("5256 MiB") && text.contains("4000 MiB"), "{text}");
        assert!(refusal(u32::MAX, u64::MAX, 4000).is_some());
    }

    #[test]
    fn memory_that_did_not_shrink_meanwhile_is_not_counted() {
        assert_eq!(used(Some(1000), Some(900), 10), Some(10 << 20));
        assert_eq!(used(Some(900), Some(1000), 10), None);
        assert_eq!(used(Some(900), Some(900), 10), None);
        assert_eq!(used(None, Some(1), 10), None);
    }

    #[test]
    fn controllers_on_this_computer_are_known_by_their_address() {
        for here in ["http://127.0.0.1:8889", "unix:/run/forkd.sock", "http://[::1]:1"] {
            assert!(is_local(here), "{here}");
        }
        assert!(!is_local("http://10.0.0.1:8889"));
    }
}
