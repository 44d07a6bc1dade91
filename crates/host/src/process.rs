//! Processes by pid *and* start time, signalled through a pidfd only.
//!
//! A pid alone is a number that the kernel gives to somebody else later. A [`Process`] holds a pidfd, which
//! means one process for ever; [`Process::find`] gets there from what was written down before a restart and
//! refuses a pid that has been given to another.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, pidfd_send_signal, waitid,
};

/// Why a process could not be looked at or signalled.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The kernel would not open a handle (out of descriptors, no pidfd support).
    #[error("process {pid} could not be opened")]
    Open {
        /// Its pid.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Its entry in /proc could not be read or understood.
    #[error("/proc/{pid}/stat could not be read")]
    Stat {
        /// Its pid.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// Nobody, or nobody any more, is at the other end of a socket.
    #[error("the process that listens on a socket could not be found")]
    Peer(#[source] io::Error),
    /// It could not be signalled or waited for.
    #[error("process {pid} could not be {what}")]
    Control {
        /// Its pid.
        pid: u32,
        /// `signalled`, `waited for`.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// One process, this very one.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_ticks: u64,
    pidfd: OwnedFd,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// It was not our child, so nobody told us.
    Unknown,
}

impl Process {
    /// A child that has not been waited for, so that its pid is certainly still its own.
    pub fn of_child(pid: u32) -> Result<Self, ProcessError> {
        let pidfd = open(pid).map_err(|source| ProcessError::Open { pid, source })?;
        let start_ticks = start_ticks(pid).map_err(|source| ProcessError::Stat { pid, source })?;
        Ok(Self { pid, start_ticks, pidfd })
    }

    /// The process that listens where `connection` leads to. It called `listen(2)` itself, so that the socket knows it.
    pub fn of_listener(connection: &UnixStream) -> Result<Self, ProcessError> {
        let peer = socket_peercred(connection).map_err(|e| ProcessError::Peer(e.into()))?;
        let process = Self::of_child(peer.pid.as_raw_nonzero().get().unsigned_abs())?;
        // Its number means nobody else as long as it lives, and as long as it does the connection stands.
        let mut fds = [PollFd::new(connection, PollFlags::empty())];
        match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            Ok(0) => Ok(process),
            Ok(_) => Err(ProcessError::Peer(io::ErrorKind::ConnectionReset.into())),
            Err(e) => Err(ProcessError::Peer(e.into())),
        }
    }

    /// The process that had `pid` and `start_ticks` when they were written down; `None` where it is gone.
    pub fn find(pid: u32, start_ticks_then: u64) -> Result<Option<Self>, ProcessError> {
        // The handle first: if the process found afterwards is the one we mean, then so is the handle's,
        // for it has had the pid all along.
        let pidfd = match open(pid) {
            Ok(pidfd) => pidfd,
            Err(e) if is_gone(&e) => return Ok(None),
            Err(source) => return Err(ProcessError::Open { pid, source }),
        };
        match start_ticks(pid) {
            Ok(now) if now == start_ticks_then => {
                let found = Self { pid, start_ticks: now, pidfd };
                Ok(found.is_alive().then_some(found))
            }
            Ok(_) => Ok(None),
            Err(e) if is_gone(&e) => Ok(None),
            Err(source) => Err(ProcessError::Stat { pid, source }),
        }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The user that it is.
    pub fn user(&self) -> Result<u32, ProcessError> {
        let found = fs::metadata(format!("/proc/{}", self.pid));
        found.map(|entry| entry.uid()).map_err(|source| ProcessError::Stat { pid: self.pid, source })
    }

    /// Its child that is called `number` in the innermost pid namespace which that is in.
    pub fn child(&self, number: u32) -> Option<u32> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid)).ok()?;
        let mut pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
        pids.find(|&pid| innermost_number(pid) == Some(number))
    }

    /// Field 22 of its `/proc/PID/stat`: when it started, in clock ticks since the boot of the host.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// Whether it still runs; a zombie does not.
    pub fn is_alive(&self) -> bool {
        !matches!(self.ended_within(Duration::ZERO), Ok(true))
    }

    /// Kills it. A process that is gone already is no error.
    pub fn kill(&self) -> Result<(), ProcessError> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(self.control("signalled", e)),
        }
    }

    /// Waits for its end, at most `bound`; false where it goes on.
    pub fn ended_within(&self, bound: Duration) -> Result<bool, ProcessError> {
        let deadline = Instant::now() + bound;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let wait =
                Timespec { tv_sec: left.as_secs().min(1 << 30) as i64, tv_nsec: left.subsec_nanos().into() };
            let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
            match poll(&mut fds, Some(&wait)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.control("waited for", e)),
            }
        }
    }

    /// Takes the zombie of a child that has ended, so that nothing of it is left; call it after
    /// [`Process::ended_within`] said true.
    pub fn reap(&self) -> Result<Ending, ProcessError> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        match rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options)) {
            Ok(Some(status)) => Ok(ending(&status)),
            // Not ours: whoever started it has restarted since, and init takes the zombie.
            Ok(None) | Err(Errno::CHILD) => Ok(Ending::Unknown),
            Err(e) => Err(self.control("waited for", e)),
        }
    }

    fn control(&self, what: &'static str, e: Errno) -> ProcessError {
        ProcessError::Control { pid: self.pid, what, source: e.into() }
    }
}

impl AsFd for Process {
    /// The pidfd: readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl AsRawFd for Process {
    fn as_raw_fd(&self) -> RawFd {
        self.pidfd.as_raw_fd()
    }
}

/// Identity of this boot of the host: what was written down about processes before it means nothing now.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn open(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

fn ending(status: &WaitIdStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Exited(code),
        (None, Some(signal)) => Ending::Signalled(signal),
        (None, None) => Ending::Unknown,
    }
}

fn innermost_number(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

fn start_ticks(pid: u32) -> io::Result<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    parse_start_ticks(&stat).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// The second field is the program's name in parentheses and may hold anything, also `)` and spaces; the
/// fields after the last `)` are numbers.
fn parse_start_ticks(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&b| b == b')')?;
    let fields = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?;
    fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn cat() -> (std::process::Child, Process) {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = Process::of_child(child.id()).unwrap();
        (child, process)
    }

    #[test]
    fn a_name_full_of_brackets_does_not_shift_the_fields() {
        let stat = b"42 (a) b (c) ) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3";
        assert_eq!(parse_start_ticks(stat), Some(987_654));
        assert_eq!(parse_start_ticks(b"42 (a"), None);
        assert_eq!(parse_start_ticks(b"42 (a) S 1"), None);
    }

    #[test]
    fn a_child_is_killed_and_leaves_no_zombie() {
        let (_child, process) = cat();
        assert!(process.is_alive());
        process.kill().unwrap();
        assert!(process.ended_within(Duration::from_secs(10)).unwrap());
        assert!(!process.is_alive());
        assert_eq!(process.reap().unwrap(), Ending::Signalled(9));
        assert!(!std::path::Path::new(&format!("/proc/{}", process.pid())).exists());
        process.kill().unwrap();
        assert_eq!(process.reap().unwrap(), Ending::Unknown);
    }

    #[test]
    fn what_was_written_down_finds_the_same_process_and_no_other() {
        let (mut child, process) = cat();
        let found = Process::find(process.pid(), process.start_ticks()).unwrap().unwrap();
        assert!(Process::find(process.pid(), process.start_ticks() + 1).unwrap().is_none());
        drop(child.stdin.take());
        assert!(found.ended_within(Duration::from_secs(10)).unwrap());
        // A zombie still has its pid and start time, but does not run.
        assert!(Process::find(process.pid(), process.start_ticks()).unwrap().is_none());
        assert_eq!(process.reap().unwrap(), Ending::Exited(0));
        assert!(Process::find(process.pid(), process.start_ticks()).unwrap().is_none());
    }

    #[test]
    fn who_listens_is_known_to_who_connects_until_it_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let connection = UnixStream::connect(&path).unwrap();
        let found = Process::of_listener(&connection).unwrap();
        assert_eq!(found.pid(), std::process::id());
        assert_eq!(found.user().unwrap(), rustix::process::geteuid().as_raw());
        drop(listener);
        assert!(matches!(Process::of_listener(&connection), Err(ProcessError::Peer(_))));
    }

    #[test]
    fn a_child_is_found_by_what_it_is_called_itself() {
        let (child, process) = cat();
        let me = Process::of_child(std::process::id()).unwrap();
        // The fork is another thread's: only those of the first are looked at.
        assert!(me.child(child.id()).is_none_or(|pid| pid == child.id()));
        assert_eq!(innermost_number(child.id()), Some(child.id()));
        assert_eq!(me.child(0), None);
        process.kill().unwrap();
        process.ended_within(Duration::from_secs(10)).unwrap();
        process.reap().unwrap();
    }

    #[test]
    fn a_living_process_is_waited_for_no_longer_than_asked() {
        let (_child, process) = cat();
        assert!(!process.ended_within(Duration::from_millis(5)).unwrap());
        process.kill().unwrap();
        process.ended_within(Duration::from_secs(10)).unwrap();
        process.reap().unwrap();
    }
}
