//! Which limits a child has, and lifting them for a moment.

use forkd_host::cgroup::{Cgroup, Cgroups};
use forkd_protocol::error::chain;
use forkd_protocol::rest::{Cpus, CreateSandboxes, Limits};
use tracing::warn;

use crate::error::{EngineError, RequestError, in_range};
use crate::monitor::{MonitorError, RunDir};

/// Fewer, and a monitor could not start its threads and write itself out.
const LEAST_PIDS: u64 = 16;
/// Less, and not even a monitor fits.
const LEAST_MEMORY_MIB: u64 = 16;
/// Less, and a guest would seem to hang.
const LEAST_IO: u64 = 16;

/// The limits of the children that are asked for: as the request has them, else as the snapshot has them, else as the
/// configuration has them.
///
/// # Errors
/// One is out of its range, or cannot be enforced here.
pub(crate) fn settle(
    asked: &CreateSandboxes,
    inherited: Limits,
    configured: Limits,
    cgroups: &Cgroups,
) -> Result<Limits, EngineError> {
    let own = match (asked.memory_limit_mib, asked.limits.memory_mib) {
        (Some(old), Some(new)) if old != new => {
            return Err(RequestError::Together("memory_limit_mib", "another limits.memory_mib").into());
        }
        (old, new) => Limits { memory_mib: new.or(old), ..asked.limits },
    };
    let limits = own.over(inherited).over(configured).in_force();
    check_ranges(&limits)?;
    cgroups.check(&limits).map_err(MonitorError::from)?;
    Ok(limits)
}

fn check_ranges(limits: &Limits) -> Result<(), RequestError> {
    let check = |what, limit: Option<u64>, least, most| match limit {
        Some(limit) => in_range::<u64>(what, limit, least, most).map(drop),
        None => Ok(()),
    };
    check("memory_limit_mib", limits.memory_mib, LEAST_MEMORY_MIB, 1 << 20)?;
    check("limits.pids", limits.pids, LEAST_PIDS, 1 << 16)?;
    check("limits.io.read_ops", limits.io.read_ops, LEAST_IO, 1 << 32)?;
    check("limits.io.write_ops", limits.io.write_ops, LEAST_IO, 1 << 32)?;
    check("limits.io.read_bytes", limits.io.read_bytes, LEAST_IO << 12, 1 << 50)?;
    check("limits.io.write_bytes", limits.io.write_bytes, LEAST_IO << 12, 1 << 50)
}

/// A sandbox that may use all processors until this is dropped: one that is held back by its limit cannot be stopped in
/// the meantime.
#[derive(Debug)]
pub(crate) struct Unthrottled {
    lifted: Option<(Cgroup, Cpus)>,
}

impl Unthrottled {
    /// Lifts the limit of a sandbox that has one. Where that fails the sandbox only stands still for longer.
    pub(crate) fn lift(dir: &RunDir, limits: &Limits, cgroups: &Cgroups) -> Self {
        let Some((cpus, leaf)) = limits.cpus.zip(dir.noted_cgroup(cgroups)) else {
            return Self { lifted: None };
        };
        if let Err(e) = leaf.limit_cpus(None) {
            warn!(error = %chain(&e), "the processor limit stays in force");
            return Self { lifted: None };
        }
        Self { lifted: Some((leaf, cpus)) }
    }
}

impl Drop for Unthrottled {
    fn drop(&mut self) {
        // Gone where the sandbox is.
        if let Some((leaf, cpus)) = self.lifted.take()
            && let Err(e) = leaf.limit_cpus(Some(cpus))
        {
            warn!(error = %chain(&e), "the processor limit could not be put back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn settled(asked: serde_json::Value, inherited: serde_json::Value) -> Result<Limits, EngineError> {
        let mount = tempfile::tempdir().unwrap();
        std::fs::write(mount.path().join("cgroup.controllers"), "memory cpu pids").unwrap();
        let cgroups = Cgroups::at(mount.path(), mount.path());
        let configured = read(serde_json::json!({"pids": 99, "memory_mib": 4096}));
        settle(&read(asked), read(inherited), configured, &cgroups)
    }

    #[test]
    fn the_request_goes_before_the_snapshot_and_that_before_the_configuration() {
        let json = |value: serde_json::Value| value;
        let limits =
            settled(json(serde_json::json!({"snapshot_tag": "t"})), serde_json::json!({"memory_mib": 256}));
        assert_eq!(limits.unwrap(), read(serde_json::json!({"memory_mib": 256, "pids": 99})));
        let asked = serde_json::json!({"snapshot_tag": "t", "memory_limit_mib": 0, "limits": {"cpus": 0.5, "pids": 0}});
        let limits = settled(asked, serde_json::json!({"memory_mib": 256})).unwrap();
        assert_eq!(limits, read(serde_json::json!({"cpus": 0.5})));
    }

    #[test]
    fn what_makes_no_sense_or_cannot_be_enforced_is_refused() {
        use forkd_protocol::error::ErrorClass;
        let none = || serde_json::json!({});
        for (limits, class) in [
            (serde_json::json!({"memory_mib": 1}), ErrorClass::Caller),
            (serde_json::json!({"pids": 3}), ErrorClass::Caller),
            (serde_json::json!({"io": {"read_ops": 1}}), ErrorClass::Caller),
            (serde_json::json!({"io": {"read_ops": 100}}), ErrorClass::HostUnfit),
        ] {
            let refused = settled(serde_json::json!({"snapshot_tag": "t", "limits": limits}), none());
            assert_eq!(refused.unwrap_err().class(), class, "{limits}");
        }
        let both =
            serde_json::json!({"snapshot_tag": "t", "memory_limit_mib": 256, "limits": {"memory_mib": 300}});
        assert_eq!(settled(both, none()).unwrap_err().class(), ErrorClass::Caller);
    }
}
