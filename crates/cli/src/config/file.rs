//! What the file holds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_controller::{Drain, GuestPorts, GuestPortsParseError, Leave};
use forkd_engine::Admission;
use forkd_protocol::rest::Limits;
use serde::{Deserialize, Serialize};

use super::ConfigFileError;

/// The whole file. What is absent is as the program has it; what the command line says goes first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// Where to listen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) listen: Option<String>,
    /// Folder of images, snapshots and sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<PathBuf>,
    /// Where published clients reach sandboxes.
    #[serde(skip_serializing_if = "Option::is_none")]
    guest_ports: Option<String>,
    /// How many monitors wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiting: Option<usize>,
    /// Limits of sandboxes.
    pub(crate) limits: Limits,
    /// How much the host is asked to carry.
    pub(crate) admission: AdmissionSection,
    /// How the controller ends.
    pub(crate) stop: Stop,
}

/// How much the host is asked to carry.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AdmissionSection {
    #[serde(skip_serializing_if = "Option::is_none")]
    overcommit: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_reserve_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_sandboxes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    disk_reserve_mib: Option<u64>,
}

/// How the controller ends.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Stop {
    #[serde(skip_serializing_if = "Option::is_none")]
    drain_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sandboxes: Option<Sandboxes>,
}

/// What becomes of sandboxes when the controller ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Sandboxes {
    /// They run on, and the next controller finds them again.
    Keep,
    /// They are ended.
    Stop,
}

impl File {
    pub(super) fn parse(text: &str, path: &Path) -> Result<Self, ConfigFileError> {
        let refused = |e| ConfigFileError::Refused { path: path.to_owned(), source: Box::new(e) };
        let file: Self = toml::from_str(text).map_err(refused)?;
        file.check().map_err(|(key, range)| ConfigFileError::Range { path: path.to_owned(), key, range })?;
        Ok(file)
    }

    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let fits = |ok: bool, key, range| if ok { Ok(()) } else { Err((key, range)) };
        let overcommit = self.admission.overcommit.unwrap_or(1.0);
        fits((0.1..=1e6).contains(&overcommit), "admission.overcommit", "0.1 to 1000000")?;
        fits(self.stop.drain_secs.unwrap_or(0) <= 3600, "stop.drain_secs", "0 to 3600")?;
        fits(self.waiting.unwrap_or(0) <= 256, "waiting", "0 to 256")
    }

    /// Where published clients reach sandboxes.
    pub(crate) fn guest_ports(&self) -> Result<Option<GuestPorts>, GuestPortsParseError> {
        self.guest_ports.as_deref().map(str::parse).transpose()
    }

    /// How much the host is asked to carry.
    pub(crate) fn admission(&self) -> Admission {
        let (own, usual) = (self.admission, Admission::default());
        Admission {
            overcommit: own.overcommit.unwrap_or(usual.overcommit),
            memory_reserve_mib: own.memory_reserve_mib.unwrap_or(usual.memory_reserve_mib),
            max_sandboxes: own.max_sandboxes.unwrap_or(usual.max_sandboxes),
            disk_reserve_mib: own.disk_reserve_mib.unwrap_or(usual.disk_reserve_mib),
        }
    }

    /// How the controller ends.
    pub(crate) fn drain(&self) -> Drain {
        let usual = Drain::default();
        Drain {
            within: self.stop.drain_secs.map_or(usual.within, Duration::from_secs),
            leave: match self.stop.sandboxes {
                Some(Sandboxes::Stop) => Leave::Nothing,
                Some(Sandboxes::Keep) | None => Leave::Sandboxes,
            },
        }
    }
}

#[cfg(test)]
impl File {
    /// One with all keys, as docs/configuration.md has them.
    pub(super) fn full() -> Self {
        use forkd_protocol::rest::IoLimits;
        Self {
            listen: Some("127.0.0.1:8889".to_owned()),
            root: Some("/var/lib/forkd".into()),
            guest_ports: Some("any".to_owned()),
            waiting: Some(16),
            limits: Limits {
                memory_mib: Some(1024),
                cpus: Some(1.5.try_into().unwrap()),
                pids: Some(64),
                io: IoLimits {
                    read_bytes: Some(104_857_600),
                    write_bytes: Some(52_428_800),
                    read_ops: Some(2000),
                    write_ops: Some(1000),
                },
            },
            admission: AdmissionSection {
                overcommit: Some(20.0),
                memory_reserve_mib: Some(128),
                max_sandboxes: Some(10_000),
                disk_reserve_mib: Some(64),
            },
            stop: Stop { drain_secs: Some(10), sandboxes: Some(Sandboxes::Keep) },
        }
    }

    /// All keys of it.
    pub(super) fn keys(&self) -> Vec<String> {
        fn walk(under: &str, value: &serde_json::Value, keys: &mut Vec<String>) {
            for (key, value) in value.as_object().unwrap() {
                let key = if under.is_empty() { key.clone() } else { format!("{under}.{key}") };
                if value.is_object() { walk(&key, value, keys) } else { keys.push(key) }
            }
        }
        let mut keys = Vec::new();
        walk("", &serde_json::to_value(self).unwrap(), &mut keys);
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, ConfigFileError> {
        File::parse(text, Path::new("forkd.toml"))
    }

    #[test]
    fn what_is_absent_is_as_usual() {
        let file = parse("[admission]\nmax_sandboxes = 3\n[stop]\nsandboxes = \"stop\"\n").unwrap();
        assert_eq!(file.admission(), Admission { max_sandboxes: 3, ..Admission::default() });
        assert_eq!(file.drain(), Drain { leave: Leave::Nothing, ..Drain::default() });
        assert_eq!(parse("").unwrap(), File::default());
    }

    #[test]
    fn what_is_not_known_or_makes_no_sense_is_refused() {
        for bad in [
            "memory_mib = 5",
            "[limits]\nmemory = 5",
            "[limits.io]\nbps = 5",
            "[limits]\ncpus = -1.0",
            "[admission]\novercommit = 0.0",
            "[stop]\nsandboxes = \"maybe\"",
            "[stop]\ndrain_secs = 100000",
            "waiting = 1000",
            "waiting = ",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let told = forkd_protocol::error::chain(&parse("[limits]\nmemory = 5").unwrap_err());
        assert!(told.contains("forkd.toml") && told.contains("memory"), "{told}");
    }
}
