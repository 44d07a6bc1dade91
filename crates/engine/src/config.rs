//! What an engine is told when it opens.

use std::env;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forkd_protocol::rest::Limits;

use crate::admission::Admission;
use crate::network::NetworkConfig;

/// Where everything lies and how long things may take.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Root of the store.
    pub root: PathBuf,
    /// Folder of `forkd-vmm` and `forkd-agent`.
    pub libexec: PathBuf,
    /// How long things may take.
    pub bounds: Bounds,
    /// How many monitors wait, started ahead of time, for the next forks.
    pub waiting: usize,
    /// Who monitors are.
    pub users: UserRange,
    /// Limits of sandboxes where neither request nor snapshot say otherwise.
    pub limits: Limits,
    /// How much this host is asked to carry.
    pub admission: Admission,
    /// How sandboxes are given networks; none are where this says nothing (`FORKD_NETWORK=off`).
    pub network: Option<NetworkConfig>,
}

/// Numbers of users and groups that monitors are, each another; nobody else on the host may be one of them. Two
/// controllers on one host need two ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRange {
    /// The first.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl UserRange {
    /// Least number: those below are the host's own.
    pub const LEAST: u32 = 65536;

    pub(crate) fn contains(&self, id: u32) -> bool {
        (self.first..self.first.saturating_add(self.count)).contains(&id)
    }

    /// As `FIRST:COUNT`, for instance `1000000000:1000000`.
    fn parse(value: &str) -> Option<Self> {
        let (first, count) = value.trim().split_once(':')?;
        let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
        // The last number of all means nobody.
        let fits = first >= Self::LEAST && count > 0 && first.checked_add(count)? < u32::MAX;
        fits.then_some(Self { first, count })
    }
}

impl Default for UserRange {
    /// Beyond what hosts give to people, services and containers.
    fn default() -> Self {
        Self { first: 1_000_000_000, count: 1_000_000 }
    }
}

/// How many monitors wait where nobody says otherwise. Each takes some 200 KiB.
pub const DEFAULT_WAITING: usize = 16;

/// How long things may take. Generous by default: in an emulated host everything is thirty times slower.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// One answer of a monitor to anything but a snapshot.
    pub control: Duration,
    /// A monitor writing a snapshot.
    pub write: Duration,
    /// A booted parent until its agent answers (`FORKD_BOOT_TIMEOUT_SECS`).
    pub boot: Duration,
    /// A restored child until its agent confirms the new identity (`FORKD_ANSWER_TIMEOUT_SECS`).
    pub answer: Duration,
    /// A guest freezing its workload (`FORKD_FREEZE_TIMEOUT_SECS`).
    pub freeze: Duration,
    /// Beyond the time that a call was given itself (`FORKD_GUEST_GRACE_SECS`).
    pub guest_grace: Duration,
    /// A killed process until it is gone.
    pub end: Duration,
}

impl Bounds {
    /// A frozen workload that is not thawed, until its monitor sees to that: twice what freezing may take.
    pub(crate) fn guard(&self) -> Duration {
        2 * (self.freeze + self.guest_grace)
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            control: Duration::from_secs(60),
            write: Duration::from_secs(600),
            boot: Duration::from_secs(180),
            answer: Duration::from_secs(60),
            freeze: Duration::from_secs(2),
            guest_grace: Duration::from_secs(30),
            end: Duration::from_secs(30),
        }
    }
}

/// Why the surroundings could not be understood.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// An environment variable does not hold a number of seconds. Correct or unset it.
    #[error("{name}={value:?} is not a number of seconds from 1 to 86400")]
    Seconds {
        /// Of the variable.
        name: &'static str,
        /// What it holds.
        value: String,
    },
    /// `FORKD_SANDBOX_UIDS` does not hold a range. Correct or unset it.
    #[error("FORKD_SANDBOX_UIDS={0:?} is not FIRST:COUNT with numbers of users from 65536 on")]
    Users(String),
    /// `FORKD_NETWORK` is neither `on` nor `off`. Correct or unset it.
    #[error("FORKD_NETWORK={0:?} is neither on nor off")]
    Network(String),
    /// The folder of this program could not be found. Set `FORKD_LIBEXEC`.
    #[error("the folder of forkd-vmm and forkd-agent could not be found; set FORKD_LIBEXEC")]
    Libexec {
        /// What the kernel said.
        source: io::Error,
    },
}

impl EngineConfig {
    /// The store at `root`, times and programs from the environment, the usual number of waiting monitors.
    pub fn from_env(root: impl Into<PathBuf>) -> Result<Self, ConfigError> {
        let defaults = Bounds::default();
        let bounds = Bounds {
            boot: seconds("FORKD_BOOT_TIMEOUT_SECS", defaults.boot)?,
            answer: seconds("FORKD_ANSWER_TIMEOUT_SECS", defaults.answer)?,
            freeze: seconds("FORKD_FREEZE_TIMEOUT_SECS", defaults.freeze)?,
            guest_grace: seconds("FORKD_GUEST_GRACE_SECS", defaults.guest_grace)?,
            ..defaults
        };
        let (users, network) = (users()?, network()?);
        Ok(Self { waiting: DEFAULT_WAITING, users, network, ..Self::plain(root, libexec()?, bounds) })
    }

    /// A store and programs, and nothing that has to be chosen: no waiting monitors, no limits, no networks.
    pub fn plain(root: impl Into<PathBuf>, libexec: impl Into<PathBuf>, bounds: Bounds) -> Self {
        Self {
            root: root.into(),
            libexec: libexec.into(),
            bounds,
            waiting: 0,
            users: UserRange::default(),
            limits: Limits::default(),
            admission: Admission::default(),
            network: None,
        }
    }

    pub(crate) fn monitor(&self) -> PathBuf {
        self.libexec.join("forkd-vmm")
    }

    pub(crate) fn agent(&self) -> PathBuf {
        self.libexec.join("forkd-agent")
    }
}

fn libexec() -> Result<PathBuf, ConfigError> {
    if let Some(folder) = env::var_os("FORKD_LIBEXEC").filter(|f| !f.is_empty()) {
        return Ok(folder.into());
    }
    let program = env::current_exe().map_err(|source| ConfigError::Libexec { source })?;
    program
        .parent()
        .map(Into::into)
        .ok_or_else(|| ConfigError::Libexec { source: io::ErrorKind::NotFound.into() })
}

fn seconds(name: &'static str, default: Duration) -> Result<Duration, ConfigError> {
    match env::var_os(name) {
        Some(value) if !value.is_empty() => {
            let value = value.to_string_lossy().into_owned();
            parse_seconds(&value).ok_or(ConfigError::Seconds { name, value })
        }
        _ => Ok(default),
    }
}

fn users() -> Result<UserRange, ConfigError> {
    match env::var("FORKD_SANDBOX_UIDS") {
        Ok(value) if !value.is_empty() => UserRange::parse(&value).ok_or(ConfigError::Users(value)),
        _ => Ok(UserRange::default()),
    }
}

fn network() -> Result<Option<NetworkConfig>, ConfigError> {
    match env::var("FORKD_NETWORK") {
        Ok(value) if value == "off" => Ok(None),
        Ok(value) if !value.is_empty() && value != "on" => Err(ConfigError::Network(value)),
        _ => Ok(Some(NetworkConfig::default())),
    }
}

fn parse_seconds(value: &str) -> Option<Duration> {
    value.trim().parse().ok().filter(|s| (1..=86_400).contains(s)).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_users_keeps_clear_of_the_hosts_own() {
        assert_eq!(UserRange::parse("70000:10"), Some(UserRange { first: 70_000, count: 10 }));
        for bad in ["", "70000", "0:10", "65535:1", "70000:0", "4294967290:5", "70000:4294967295", "-1:2"] {
            assert_eq!(UserRange::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn only_sensible_numbers_of_seconds_are_taken() {
        assert_eq!(parse_seconds(" 90 "), Some(Duration::from_secs(90)));
        for bad in ["0", "-1", "1.5", "10s", "", "86401", "99999999999999999999"] {
            assert_eq!(parse_seconds(bad), None, "{bad:?}");
        }
    }
}
