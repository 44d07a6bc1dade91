//! A process that is surely the one that was started: a pid alone may mean another one by now.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// Pid, the moment of its start, and the boot of the computer that both belong to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The number.
    pub(crate) pid: u32,
    start_ticks: u64,
    boot_id: String,
}

impl Identity {
    /// Who has this pid now; `None` where nobody has, or only a remnant that nobody waited for.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (state, start_ticks) = parse_stat(&stat)?;
        if matches!(state, 'Z' | 'X') {
            return None;
        }
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        Some(Self { pid, start_ticks, boot_id })
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::of(self.pid).as_ref() == Some(self)
    }

    /// A descriptor of it that stays right whatever becomes of the pid; `None` where it has ended.
    pub(crate) fn open(&self) -> io::Result<Option<Handle>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // Looked at again after opening: from here on the descriptor cannot mean another process.
            Ok(fd) => Ok(self.is_alive().then_some(Handle(fd))),
            Err(rustix::io::Errno::SRCH) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}

/// An open process.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

impl Handle {
    /// The descriptor: readable once the process has ended.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Waits for its end, at most so long; whether it ended.
    pub(crate) fn wait(&self, bound: Duration) -> io::Result<bool> {
        let until = Instant::now() + bound;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(left))) {
                Ok(0) if left.is_zero() => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Ends it: first with the request to clean up, after `grace` without.
    pub(crate) fn end(&self, grace: Duration) -> io::Result<()> {
        for signal in [Signal::TERM, Signal::KILL] {
            match pidfd_send_signal(&self.0, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(e) => return Err(e.into()),
            }
            if self.wait(grace)? {
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end"))
    }
}

/// For `poll`.
pub(crate) fn timespec(d: Duration) -> Timespec {
    Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(d.subsec_nanos()) }
}

/// State and start time from `/proc/PID/stat`; the name in brackets may contain anything.
fn parse_stat(stat: &str) -> Option<(char, u64)> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn stat_is_read_behind_any_name() {
        let rest = (4..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(parse_stat(&format!("7 (a) S (x)) R {rest}")), Some(('R', 22)));
        assert_eq!(parse_stat("7 (a) R 1 2"), None);
        assert_eq!(parse_stat("garbage"), None);
    }

    #[test]
    fn a_process_is_known_until_it_ends_and_never_taken_for_another() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap();
        assert!(identity.is_alive());
        let other = Identity { start_ticks: identity.start_ticks + 1, ..identity.clone() };
        assert!(!other.is_alive());
        assert!(other.open().unwrap().is_none());
        let handle = identity.open().unwrap().unwrap();
        assert!(!handle.wait(Duration::from_millis(1)).unwrap());
        handle.end(Duration::from_secs(10)).unwrap();
        assert!(!identity.is_alive(), "a process nobody waited for counts as ended");
        child.wait().unwrap();
    }
}
