//! The host's side: listener, epoll set, and the timer for clients that do not speak.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::timerfd::TimerFd;

const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const EVENTS_PER_TURN: usize = 32;

/// Something happened on the host's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HostEvent {
    /// Clients may be waiting.
    Clients,
    /// The timer ran out.
    Timer,
    /// A client's socket, by the connection's host port.
    Client { port: u32, readable: bool, writable: bool, hung_up: bool },
}

/// Everything is registered edge-triggered: whether something can be read is remembered by whoever reads,
/// so a client whose bytes must wait (for a buffer or for credit) costs neither wake-ups nor system calls.
#[derive(Debug)]
pub(super) struct Host {
    listener: UnixListener,
    epoll: Epoll,
    listening: bool,
    /// There may be clients that were not accepted yet.
    waiting: bool,
    /// Clients that did not come through the listener.
    own: VecDeque<UnixStream>,
    timer: Option<TimerFd>,
    timer_runs: bool,
}

impl Host {
    pub(super) fn new(listener: UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        Ok(Self {
            listener,
            epoll,
            listening: false,
            waiting: false,
            own: VecDeque::new(),
            timer: None,
            timer_runs: false,
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches the listener. Only while a driver is there: nobody would empty the epoll set otherwise.
    pub(super) fn listen(&mut self) -> io::Result<()> {
        if !self.listening {
            self.control(ControlOperation::Add, self.listener.as_raw_fd(), EventSet::IN, LISTENER)?;
            self.listening = true;
            self.waiting = true;
        }
        Ok(())
    }

    /// Watches nothing any more.
    pub(super) fn stop(&mut self) {
        if self.listening {
            let _ = self.control(
                ControlOperation::Delete,
                self.listener.as_raw_fd(),
                EventSet::empty(),
                LISTENER,
            );
            self.listening = false;
        }
        self.waiting = false;
        self.stop_timer();
    }

    /// Lets a client wait that this process made, and whose socket does not block.
    pub(super) fn add_own(&mut self, stream: UnixStream) {
        self.own.push_back(stream);
    }

    /// The next client that waits.
    pub(super) fn accept(&mut self) -> Option<UnixStream> {
        if let Some(stream) = self.own.pop_front() {
            return Some(stream);
        }
        while self.waiting {
            match self.listener.accept() {
                Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => return Some(stream),
                // The client is gone already.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.waiting = false,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                // Out of descriptors or memory: the client waits until a connection ends.
                Err(_) => return None,
            }
        }
        None
    }

    pub(super) fn watch(&self, stream: &UnixStream, port: u32) -> io::Result<()> {
        let interest = EventSet::IN | EventSet::READ_HANG_UP;
        self.control(ControlOperation::Add, stream.as_raw_fd(), interest, port.into())
    }

    /// Also (or no longer) reports when the socket takes bytes.
    pub(super) fn watch_writable(&self, stream: &UnixStream, port: u32, on: bool) -> io::Result<()> {
        let mut interest = EventSet::IN | EventSet::READ_HANG_UP;
        interest.set(EventSet::OUT, on);
        self.control(ControlOperation::Modify, stream.as_raw_fd(), interest, port.into())
    }

    /// Explicitly, since a copy of the descriptor in a forked writer would keep the registration alive.
    pub(super) fn unwatch(&self, stream: &UnixStream) {
        let _ = self.control(ControlOperation::Delete, stream.as_raw_fd(), EventSet::empty(), 0);
    }

    /// What happened, without waiting; the epoll set reports again if there was more.
    pub(super) fn events(&mut self) -> impl Iterator<Item = HostEvent> + use<> {
        let mut events = [EpollEvent::default(); EVENTS_PER_TURN];
        let count = self.epoll.wait(0, &mut events).unwrap_or(0);
        for event in events.iter().take(count) {
            match event.data() {
                LISTENER => self.waiting = true,
                TIMER => self.stop_timer(),
                _ => {}
            }
        }
        events.into_iter().take(count).filter_map(|event| match event.data() {
            LISTENER => Some(HostEvent::Clients),
            TIMER => Some(HostEvent::Timer),
            data => Some(HostEvent::Client {
                port: u32::try_from(data).ok()?,
                readable: event.event_set().intersects(EventSet::IN | EventSet::READ_HANG_UP),
                writable: event.event_set().contains(EventSet::OUT),
                hung_up: event.event_set().intersects(EventSet::HANG_UP | EventSet::ERROR),
            }),
        })
    }

    /// Has [`HostEvent::Timer`] reported once after `delay`, unless it will be earlier already.
    pub(super) fn start_timer(&mut self, delay: Duration) -> io::Result<()> {
        if self.timer_runs {
            return Ok(());
        }
        let mut timer = match self.timer.take() {
            Some(timer) => timer,
            None => {
                let timer = TimerFd::new().map_err(io::Error::from)?;
                self.control(ControlOperation::Add, timer.as_raw_fd(), EventSet::IN, TIMER)?;
                timer
            }
        };
        let armed = timer.reset(delay, None).map_err(io::Error::from);
        self.timer = Some(timer);
        self.timer_runs = armed.is_ok();
        armed
    }

    fn stop_timer(&mut self) {
        if let (Some(timer), true) = (&mut self.timer, self.timer_runs) {
            // Disarming also empties it.
            let _ = timer.clear();
        }
        self.timer_runs = false;
    }

    fn control(&self, op: ControlOperation, fd: RawFd, interest: EventSet, data: u64) -> io::Result<()> {
        self.epoll.ctl(op, fd, EpollEvent::new(interest | EventSet::EDGE_TRIGGERED, data))
    }
}
