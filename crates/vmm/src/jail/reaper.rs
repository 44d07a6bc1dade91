//! Process 1 of a jail: it outlives the monitor for the sake of its writers, and does nothing else.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};
use rustix::stdio::{dup2_stdout, stdout};

use super::{JailError, Step, filter};
use crate::line::Line;
use crate::{priority, writer};

/// Forks; the copy is told `None`.
pub(super) fn fork() -> Result<Option<Pid>, JailError> {
    // SAFETY: this process has one thread, so the copy is whole: no lock is held by anybody else.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).step("make a process"),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the calling process and nothing that it shares with others.
pub(super) fn end(code: i32) -> ! {
    // SAFETY: ends this process at once; no destructor or handler of a copy has anything to do.
    unsafe { libc::_exit(code) }
}

/// The monitor cannot write where the reaper will note how it ended: its standard output is its log.
pub(super) fn keep_ending_from_monitor() -> Result<(), JailError> {
    dup2_stdout(io::stderr().as_fd()).step("put its log in the place of its output")
}

/// Reaps whatever ends in the jail until nothing is left. Its end would be that of the whole jail.
pub(super) fn reap_until_empty(monitor: Pid) -> ! {
    priority::serving();
    let _ = rustix::thread::set_name(c"forkd-reaper");
    let output = stdout().as_raw_fd();
    writer::close_all_but([output; 4]);
    // Without it the reaper would still be nobody in an empty root; it goes on, since ending takes the monitor along.
    if let Ok(filter) = filter::of_reaper() {
        let _ = filter.bind();
    }
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == monitor => note(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => end(0),
        }
    }
}

/// One line for whoever looks at how the monitor ended; see `forkd_protocol::control::ProcessEnd`.
fn note(status: WaitStatus) {
    use std::fmt::Write as _;
    let mut line = Line::default();
    let _ = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => writeln!(line, r#"{{"how":"exited","code":{code}}}"#),
        (None, signal) => writeln!(line, r#"{{"how":"killed","signal":{}}}"#, signal.unwrap_or_default()),
    };
    // Nobody is left to be told where this fails.
    let _ = rustix::io::write(stdout(), line.bytes());
}
