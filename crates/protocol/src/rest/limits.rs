//! What a sandbox may take of its host.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Processors, in thousandths of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "f64", into = "f64")]
#[schema(value_type = f64)]
pub struct Cpus(u32);

/// Not a number of processors.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{0} is no number of processors: it is 0 (no limit), or 0.01 to 1024")]
pub struct CpusError(f64);

impl Cpus {
    /// Thousandths of a processor.
    pub fn millis(self) -> u32 {
        self.0
    }
}

impl TryFrom<f64> for Cpus {
    type Error = CpusError;

    fn try_from(cpus: f64) -> Result<Self, CpusError> {
        let fits = cpus == 0.0 || (0.01..=1024.0).contains(&cpus);
        // Fits: at most 1024000.
        if fits { Ok(Self((cpus * 1000.0).round() as u32)) } else { Err(CpusError(cpus)) }
    }
}

impl From<Cpus> for f64 {
    fn from(cpus: Cpus) -> Self {
        Self::from(cpus.0) / 1000.0
    }
}

impl std::fmt::Display for Cpus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f64::from(*self).fmt(f)
    }
}

/// Limits of a sandbox. In a request, what is absent is as the snapshot has it, then as the configuration has it; 0 is
/// no limit. In an answer, what is absent is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory that is charged to it, MiB: what it changed of its snapshot, page cache of its disk, its monitor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// Processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// Threads and processes of its monitor on the host; what runs in the guest does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
    /// What it reads from and writes to the disk of the store.
    #[serde(skip_serializing_if = "IoLimits::is_empty")]
    pub io: IoLimits,
}

/// Limits of disk traffic, per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoLimits {
    /// Bytes read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// Bytes written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bytes: Option<u64>,
    /// Read operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_ops: Option<u64>,
    /// Write operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_ops: Option<u64>,
}

impl Limits {
    /// Each as it is here, or where it is absent as it is `below`.
    #[must_use]
    pub fn over(self, below: Self) -> Self {
        let (io, io_below) = (self.io, below.io);
        Self {
            memory_mib: self.memory_mib.or(below.memory_mib),
            cpus: self.cpus.or(below.cpus),
            pids: self.pids.or(below.pids),
            io: IoLimits {
                read_bytes: io.read_bytes.or(io_below.read_bytes),
                write_bytes: io.write_bytes.or(io_below.write_bytes),
                read_ops: io.read_ops.or(io_below.read_ops),
                write_ops: io.write_ops.or(io_below.write_ops),
            },
        }
    }

    /// Without those that are 0, which say that there is no limit.
    #[must_use]
    pub fn in_force(self) -> Self {
        let set = |limit: Option<u64>| limit.filter(|&limit| limit != 0);
        Self {
            memory_mib: set(self.memory_mib),
            cpus: self.cpus.filter(|cpus| cpus.millis() != 0),
            pids: set(self.pids),
            io: IoLimits {
                read_bytes: set(self.io.read_bytes),
                write_bytes: set(self.io.write_bytes),
                read_ops: set(self.io.read_ops),
                write_ops: set(self.io.write_ops),
            },
        }
    }

    /// The memory limit in bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_mib.map(|mib| mib.saturating_mul(1 << 20))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl IoLimits {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_inherited_and_zero_is_no_limit() {
        let read = |text: &str| serde_json::from_str::<Limits>(text).unwrap();
        let asked = read(r#"{"memory_mib": 0, "io": {"read_ops": 5}}"#);
        let inherited = read(r#"{"memory_mib": 256, "cpus": 0.5, "io": {"read_ops": 9, "write_bytes": 7}}"#);
        let told = serde_json::to_string(&asked.over(inherited).in_force()).unwrap();
        assert_eq!(told, r#"{"cpus":0.5,"io":{"write_bytes":7,"read_ops":5}}"#);
        assert_eq!(serde_json::to_string(&Limits::default()).unwrap(), "{}");
        assert_eq!(inherited.memory_bytes(), Some(256 << 20));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            r#"{"cpus": -1}"#,
            r#"{"cpus": 0.001}"#,
            r#"{"cpus": 1e9}"#,
            r#"{"memory": 5}"#,
            r#"{"io": {"bps": 5}}"#,
        ] {
            assert!(serde_json::from_str::<Limits>(bad).is_err(), "{bad}");
        }
        assert!(Cpus::try_from(f64::NAN).is_err());
    }
}
