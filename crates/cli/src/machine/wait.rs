//! Waiting until the machine can be used: woken by what its console says and by its end.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;

use super::console::{Console, Event};
use super::dirs::{self, Dirs};
use super::error::MachineError;
use super::process::{Handle, timespec};
use super::record::Record;
use crate::ui::Step;

/// An emulated computer on a busy host takes its time; what takes longer than this will not come.
const LONGEST: Duration = Duration::from_secs(300);
/// How often the controller is asked once it was started: that it listens is not said on the console.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// So many ends of the controller are no accident.
const MOST_ENDS: u32 = 3;

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// The controller answers.
    Answers,
    /// Only the machine itself is up.
    Booted,
}

/// Waits for a machine that was started, or whose controller was started anew.
pub(crate) fn wait(
    dirs: &Dirs,
    record: &Record,
    console: Console,
    until: Until,
    step: &Step,
) -> Result<(), MachineError> {
    let log = dirs.serial_log();
    let process = record.process.open().map_err(|e| MachineError::io("watch", "QEMU", e))?;
    let changes = changes(dirs).map_err(|e| MachineError::io("watch", &log, e))?;
    let mut progress = Progress { doing: "booting".to_owned(), up: false, ends: 0 };
    let mut console = console;
    let began = Instant::now();
    let mut ends_before = None;
    loop {
        for event in console.events().map_err(|e| MachineError::io("read", &log, e))? {
            if event == Event::Stalled && !progress.up {
                return Err(MachineError::Stalled { doing: progress.doing });
            }
            progress.take(event, step).map_err(|tail| progress_failed(&progress, tail))?;
        }
        // A machine that has run for long may have seen its controller end, and come back, many times.
        let ends = progress.ends - *ends_before.get_or_insert(progress.ends);
        if ends >= MOST_ENDS {
            return Err(MachineError::Controller { tail: dirs::tail(&dirs.controller_log(), 5) });
        }
        let there = match until {
            Until::Answers => progress.up && answers(record.plan.api_port),
            Until::Booted => progress.up,
        };
        if there {
            return Ok(());
        }
        let Some(process) = process.as_ref().filter(|_| record.process.is_alive()) else {
            return Err(progress_failed(&progress, dirs::tail(&log, 5)));
        };
        let Some(left) = LONGEST.checked_sub(began.elapsed()) else {
            return Err(MachineError::TooSlow { doing: progress.doing, after: LONGEST });
        };
        let bound = if progress.up { ASK_EVERY } else { left };
        sleep(process, &changes, bound).map_err(|e| MachineError::io("watch", &log, e))?;
    }
}

fn progress_failed(progress: &Progress, tail: String) -> MachineError {
    MachineError::Ended { doing: progress.doing.clone(), tail }
}

/// How far it has come.
#[derive(Debug)]
struct Progress {
    doing: String,
    up: bool,
    ends: u32,
}

impl Progress {
    fn take(&mut self, event: Event, step: &Step) -> Result<(), String> {
        match event {
            Event::Stage(doing) => {
                step.note(&doing);
                self.doing = doing;
            }
            Event::Note(text) => step.note(&text),
            Event::Failed(why) => return Err(why),
            Event::ControllerStarts => self.up = true,
            Event::ControllerEnded => self.ends += 1,
            // One that is up may only have waited for the computer under it.
            Event::Stalled => {}
        }
        Ok(())
    }
}

/// Becomes readable when the console says something.
fn changes(dirs: &Dirs) -> io::Result<OwnedFd> {
    let fd = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&fd, dirs.serial_log(), inotify::WatchFlags::MODIFY)?;
    Ok(fd)
}

fn sleep(process: &Handle, changes: &OwnedFd, bound: Duration) -> io::Result<()> {
    let mut fds = [PollFd::new(process.fd(), PollFlags::IN), PollFd::new(changes, PollFlags::IN)];
    match poll(&mut fds, Some(&timespec(bound))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    // Which change it was does not matter: the console is read anyway.
    let mut drained = [0u8; 4096];
    while rustix::io::read(changes, &mut drained).is_ok_and(|count| count == drained.len()) {}
    Ok(())
}

/// Whether a controller says that it is well.
pub(crate) fn answers(port: u16) -> bool {
    healthy(port).unwrap_or(false)
}

fn healthy(port: u16) -> io::Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_write_timeout(Some(Duration::from_secs(1)))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
    let mut status = [0u8; 12];
    stream.read_exact(&mut status)?;
    Ok(&status == b"HTTP/1.1 200")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    fn answered_with(text: &'static [u8]) -> bool {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0u8; 16];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(text).unwrap();
        });
        let answered = answers(port);
        server.join().unwrap();
        answered
    }

    #[test]
    fn only_a_healthy_controller_counts() {
        assert!(answered_with(b"HTTP/1.1 200 OK\r\n\r\n"));
        assert!(!answered_with(b"HTTP/1.1 503 Service Unavailable\r\n\r\n"));
        assert!(!answered_with(b"SSH-2.0"), "somebody else listens, or the emulator with nothing behind it");
    }
}
