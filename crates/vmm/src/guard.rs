//! Seeing to it that a workload does not stay frozen because whoever had it frozen is gone.
//!
//! Before the engine has the agent freeze the workload it sets a guard up ([`Request::Guard`]), and takes it back once the
//! workload runs again. Where that does not happen in time, the monitor has the agent thaw it, over a connection of its
//! own through the vsock device, as often as is needed.
//!
//! That is the monitor's and not the agent's to do: a timer in the guest would be part of the snapshot, and would thaw a
//! child before it knows who it is. The guard is no part of a machine's state. And a snapshot that counts on a frozen
//! workload is refused once the guard has run out, since the thaw may be on its way.
//!
//! [`Request::Guard`]: forkd_protocol::control::Request::Guard

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forkd_protocol::guest::{AGENT_PORT, PATH_THAW};
use vmm_sys_util::timerfd::TimerFd;

use crate::error::MonitorError;

/// An agent that does not answer is asked again after this long.
const AGAIN: Duration = Duration::from_secs(60);
const CHUNK: usize = 1024;

/// The guard over one workload.
#[derive(Debug)]
pub(crate) struct Guard {
    timer: TimerFd,
    within: Duration,
    state: State,
}

#[derive(Debug)]
enum State {
    Off,
    Armed,
    /// The agent was asked, and closes this once the workload runs.
    Thawing(UnixStream),
}

impl Guard {
    /// One that guards nothing yet.
    pub(crate) fn new() -> Result<Self, MonitorError> {
        let timer = TimerFd::new().map_err(|e| MonitorError::Events(e.into()))?;
        Ok(Self { timer, within: Duration::ZERO, state: State::Off })
    }

    /// Readable when time has run out.
    pub(crate) fn timer_fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Begins, or begins anew.
    ///
    /// # Errors
    /// A thaw is under way, so that what is frozen now would not stay frozen.
    pub(crate) fn arm(&mut self, within: Duration) -> Result<(), MonitorError> {
        if matches!(self.state, State::Thawing(_)) {
            return Err(MonitorError::Thawing);
        }
        // A timer of no time at all would never run out.
        self.within = within.max(Duration::from_millis(1));
        self.start(self.within)?;
        self.state = State::Armed;
        Ok(())
    }

    /// An error unless what is frozen stays so.
    pub(crate) fn check(&self) -> Result<(), MonitorError> {
        if matches!(self.state, State::Armed) { Ok(()) } else { Err(MonitorError::Unguarded) }
    }

    /// The time begins anew, where there is something to guard.
    pub(crate) fn restart(&mut self) -> Result<(), MonitorError> {
        if matches!(self.state, State::Armed) { self.start(self.within) } else { Ok(()) }
    }

    /// There is nothing to guard any more. A thaw that is under way goes on.
    pub(crate) fn disarm(&mut self) {
        if matches!(self.state, State::Armed) {
            self.state = State::Off;
            let _ = self.timer.clear();
        }
    }

    /// Time has run out. Returns the other end of a connection over which the agent is asked, and the descriptor at which
    /// its answer is to be [noticed](Guard::hear); none where there is nothing to guard.
    pub(crate) fn run_out(&mut self) -> Result<Option<(UnixStream, RawFd)>, MonitorError> {
        let _ = self.timer.clear();
        if matches!(self.state, State::Off) {
            return Ok(None);
        }
        let (mut ours, theirs) = UnixStream::pair().map_err(MonitorError::Events)?;
        ours.set_nonblocking(true).map_err(MonitorError::Events)?;
        ours.write_all(request().as_bytes()).map_err(MonitorError::Events)?;
        let fd = ours.as_raw_fd();
        self.state = State::Thawing(ours);
        self.start(AGAIN)?;
        Ok(Some((theirs, fd)))
    }

    /// The agent says something; it is done when it closes the connection.
    pub(crate) fn hear(&mut self) {
        let State::Thawing(stream) = &mut self.state else { return };
        let mut chunk = [0; CHUNK];
        match stream.read(&mut chunk) {
            Ok(0) => {}
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            _ => return,
        }
        self.state = State::Off;
        let _ = self.timer.clear();
    }

    fn start(&mut self, time: Duration) -> Result<(), MonitorError> {
        self.timer.reset(time, None).map_err(|e| MonitorError::Events(e.into()))
    }
}

/// What a client of the vsock socket says to have the workload thawed.
fn request() -> String {
    format!(
        "CONNECT {AGENT_PORT}\nPOST {PATH_THAW} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);

    fn wait(guard: &mut Guard) {
        guard.timer.wait().unwrap();
    }

    #[test]
    fn a_workload_that_is_left_frozen_is_thawed() {
        let mut guard = Guard::new().unwrap();
        assert!(matches!(guard.check(), Err(MonitorError::Unguarded)));
        guard.arm(SOON).unwrap();
        guard.check().unwrap();
        wait(&mut guard);
        let (mut agent, _) = guard.run_out().unwrap().unwrap();
        // Neither may a snapshot count on it now, nor may another freeze.
        assert!(matches!(guard.check(), Err(MonitorError::Unguarded)));
        assert!(matches!(guard.arm(SOON), Err(MonitorError::Thawing)));
        let mut asked = [0; 256];
        let length = agent.read(&mut asked).unwrap();
        let asked = std::str::from_utf8(&asked[..length]).unwrap();
        assert!(asked.starts_with("CONNECT 49983\nPOST /forkd/v1/thaw HTTP/1.1\r\n"), "{asked}");

        agent.write_all(b"OK 1\nHTTP/1.1 200 OK\r\n\r\n").unwrap();
        guard.hear();
        assert!(guard.arm(SOON).is_err(), "the agent has not closed yet");
        drop(agent);
        guard.hear();
        guard.arm(SOON).unwrap();
    }

    #[test]
    fn an_agent_that_breaks_off_without_an_answer_is_asked_again() {
        let mut guard = Guard::new().unwrap();
        guard.arm(SOON).unwrap();
        wait(&mut guard);
        let (first, _) = guard.run_out().unwrap().unwrap();
        assert!(guard.run_out().unwrap().is_some(), "time has run out again");
        drop(first);
    }

    #[test]
    fn what_was_taken_back_does_nothing() {
        let mut guard = Guard::new().unwrap();
        guard.arm(SOON).unwrap();
        guard.disarm();
        assert!(guard.run_out().unwrap().is_none());
        guard.arm(Duration::from_secs(3600)).unwrap();
        guard.restart().unwrap();
        guard.check().unwrap();
    }
}
