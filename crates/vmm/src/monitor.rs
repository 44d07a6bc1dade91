//! The event loop: one thread that serves the engine and every device.
//!
//! ```text
//!   outer epoll ── control socket, its connections, end of a vCPU, reset line
//!        └──────── inner epoll ── queue doorbells and descriptors of the devices
//! ```
//!
//! The inner set hangs in the outer one only while the machine runs: a paused machine's devices do nothing, and
//! doorbells that rang meanwhile are still there when it goes on.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use forkd_kvm::End;
use forkd_protocol::control::{CONTROL_VERSION, Connection, Exit, Phase, Reply, Request, Status};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::error::{MonitorError, refusal};
use crate::guard::Guard;
use crate::handed::Handed;
use crate::machine::{Host, Machine};
use crate::priority;
use crate::watch::watch;

/// Connections at once: the engine needs one, and one more while it is replaced.
const MAX_CONNECTIONS: usize = 4;
/// A peer that stops in the middle of a frame holds the loop up no longer than this.
const FRAME_PATIENCE: Duration = Duration::from_secs(5);
const EVENTS: usize = 32;
/// To epoll: until something happens.
const FOREVER: i32 = -1;

/// What an event in the outer set means; the rest are connections, by descriptor.
const TOKEN_LISTENER: u64 = 0;
const TOKEN_DEVICES: u64 = 1;
const TOKEN_ENDED: u64 = 2;
const TOKEN_GUARD: u64 = 3;
const TOKEN_THAWED: u64 = 4;
const TOKEN_CONNECTION: u64 = 1 << 32;

/// A monitor, with or without its machine.
#[derive(Debug)]
pub struct Monitor {
    host: Host,
    listener: UnixListener,
    connections: HashMap<RawFd, Connection>,
    epoll: Epoll,
    machine: Option<Machine>,
    guard: Guard,
    stop: bool,
}

impl Monitor {
    /// Serves the engine on `listener`.
    ///
    /// # Errors
    /// KVM or epoll are not to be had.
    pub fn new(host: Host, listener: UnixListener) -> Result<Self, MonitorError> {
        listener.set_nonblocking(true).map_err(MonitorError::Events)?;
        let epoll = Epoll::new().map_err(MonitorError::Events)?;
        watch(&epoll, listener.as_raw_fd(), TOKEN_LISTENER)?;
        let guard = Guard::new()?;
        watch(&epoll, guard.timer_fd(), TOKEN_GUARD)?;
        Ok(Self { host, listener, connections: HashMap::new(), epoll, machine: None, guard, stop: false })
    }

    /// Runs until the guest ends or the engine says stop; says how it ended.
    ///
    /// # Errors
    /// The loop itself cannot go on.
    pub fn run(&mut self) -> Result<Exit, MonitorError> {
        let mut events = [EpollEvent::default(); EVENTS];
        loop {
            let patience = if self.has_idle_work() { 0 } else { FOREVER };
            let count = match self.epoll.wait(patience, &mut events) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(MonitorError::Events)?,
            };
            if count == 0 {
                self.do_idle_work();
            }
            for event in events.iter().take(count) {
                if let Some(exit) = self.handle(event.data())? {
                    return Ok(exit);
                }
            }
            if self.stop {
                return Ok(Exit::Stopped);
            }
        }
    }

    /// Writes how the guest ended where the engine looks for it.
    pub fn leave_last_words(&mut self, exit: &Exit) {
        if let Some(machine) = &mut self.machine {
            machine.leave_last_words(exit);
        }
    }

    fn handle(&mut self, token: u64) -> Result<Option<Exit>, MonitorError> {
        match token {
            TOKEN_LISTENER => self.accept()?,
            TOKEN_DEVICES => {
                if let Some(machine) = &mut self.machine {
                    machine.serve_devices()?;
                }
            }
            TOKEN_GUARD => self.thaw()?,
            TOKEN_THAWED => self.guard.hear(),
            TOKEN_ENDED => return Ok(self.machine.as_ref().and_then(Machine::end).map(exit_of)),
            connection => {
                let fd = RawFd::try_from(connection & 0xffff_ffff).unwrap_or(-1);
                self.converse(fd)?;
            }
        }
        Ok(None)
    }

    /// Has the agent thaw a workload that was left frozen.
    fn thaw(&mut self) -> Result<(), MonitorError> {
        let Some(machine) = self.machine.as_ref().filter(|machine| machine.is_running()) else {
            self.guard.disarm();
            return Ok(());
        };
        let Some((client, answer)) = self.guard.run_out()? else { return Ok(()) };
        watch(&self.epoll, answer, TOKEN_THAWED)?;
        machine.devices.add_vsock_client(client).map_err(MonitorError::Events)
    }

    fn has_idle_work(&self) -> bool {
        self.machine.as_ref().is_some_and(Machine::has_idle_work)
    }

    fn do_idle_work(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.do_idle_work();
        }
    }

    fn accept(&mut self) -> Result<(), MonitorError> {
        let Ok((stream, _)) = self.listener.accept() else { return Ok(()) };
        if self.connections.len() >= MAX_CONNECTIONS || stream.set_nonblocking(false).is_err() {
            return Ok(());
        }
        let connection = Connection::new(stream);
        if connection.set_timeout(Some(FRAME_PATIENCE)).is_ok() {
            let fd = std::os::fd::AsFd::as_fd(&connection).as_raw_fd();
            watch(&self.epoll, fd, TOKEN_CONNECTION | u64::from(fd.unsigned_abs()))?;
            self.connections.insert(fd, connection);
        }
        Ok(())
    }

    /// One request of one connection. A connection that breaks is dropped; the machine does not care.
    fn converse(&mut self, fd: RawFd) -> Result<(), MonitorError> {
        let Some(mut connection) = self.connections.remove(&fd) else { return Ok(()) };
        let Ok((request, descriptors)) = connection.next_request() else { return Ok(()) };
        let waited = self.machine.is_none();
        let reply = self.answer(request, descriptors).unwrap_or_else(|error| Reply::Refused(refusal(&error)));
        if connection.answer(&reply).is_ok() {
            self.connections.insert(fd, connection);
        }
        if waited && self.machine.is_some() {
            priority::serving();
        }
        self.watch_devices_while_running()
    }

    fn answer(
        &mut self,
        request: Request,
        descriptors: Vec<std::os::fd::OwnedFd>,
    ) -> Result<Reply, MonitorError> {
        let begun = Instant::now();
        match request {
            Request::Status => return Ok(Reply::Status(self.status()?)),
            Request::Boot(boot) => {
                self.expect_no_machine()?;
                let handed = Handed::new(&boot.roles, descriptors)?;
                let mut machine = Machine::boot(&mut self.host, &boot, handed)?;
                self.adopt(&machine)?;
                self.host.rules().bind_serving().map_err(MonitorError::Bind)?;
                machine.resume()?;
                self.machine = Some(machine);
            }
            Request::Restore(restore) => {
                self.expect_no_machine()?;
                let handed = Handed::new(&restore.roles, descriptors)?;
                let mut machine = Machine::restore(&mut self.host, &restore, handed)?;
                self.adopt(&machine)?;
                self.host.rules().bind_serving().map_err(MonitorError::Bind)?;
                if restore.run {
                    machine.resume()?;
                }
                self.machine = Some(machine);
            }
            Request::Pause => self.machine()?.pause()?,
            Request::Resume => self.machine()?.resume()?,
            Request::Snapshot(snapshot) => {
                if snapshot.guarded {
                    self.guard.check()?;
                }
                let handed = Handed::new(&snapshot.roles, descriptors)?;
                let told = self.machine()?.snapshot(handed, &snapshot)?;
                // What stands still is the next controller's to decide about.
                if snapshot.resume {
                    self.guard.restart()?
                } else {
                    self.guard.disarm()
                }
                return Ok(Reply::Snapshotted(told));
            }
            Request::Changed { roles } => {
                let handed = Handed::new(&roles, descriptors)?;
                self.machine()?.write_changed(handed)?;
            }
            Request::Guard { within_ms } => self.guard.arm(Duration::from_millis(within_ms))?,
            Request::Unguard => self.guard.disarm(),
            Request::OpenNetwork => self.machine()?.devices.open_network().map_err(MonitorError::Events)?,
            Request::Stop => self.stop = true,
        }
        Ok(Reply::Done { micros: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX) })
    }

    fn status(&mut self) -> Result<Status, MonitorError> {
        let phase = match &self.machine {
            None => Phase::Waiting,
            Some(machine) if machine.is_running() => Phase::Running,
            Some(_) => Phase::Paused,
        };
        let figures = self.machine.as_ref().map(Machine::figures).transpose()?.unwrap_or_default();
        Ok(Status {
            version: CONTROL_VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            phase,
            exit: None,
            changed_pages: figures.changed_pages,
            console_dropped: figures.console_dropped,
            device_errors: figures.device_errors,
            tops: figures.tops,
        })
    }

    fn adopt(&mut self, machine: &Machine) -> Result<(), MonitorError> {
        watch(&self.epoll, machine.ended_fd(), TOKEN_ENDED)?;
        watch(&self.epoll, machine.reset_fd(), TOKEN_ENDED)
    }

    fn watch_devices_while_running(&mut self) -> Result<(), MonitorError> {
        let Some(machine) = &mut self.machine else { return Ok(()) };
        if machine.is_running() == machine.devices_watched {
            return Ok(());
        }
        let operation = if machine.is_running() { ControlOperation::Add } else { ControlOperation::Delete };
        let event = EpollEvent::new(EventSet::IN, TOKEN_DEVICES);
        self.epoll.ctl(operation, machine.devices_fd(), event).map_err(MonitorError::Events)?;
        machine.devices_watched = machine.is_running();
        Ok(())
    }

    fn machine(&mut self) -> Result<&mut Machine, MonitorError> {
        self.machine.as_mut().ok_or(MonitorError::NoMachine)
    }

    fn expect_no_machine(&self) -> Result<(), MonitorError> {
        if self.machine.is_some() { Err(MonitorError::HasMachine) } else { Ok(()) }
    }
}

fn exit_of(end: End) -> Exit {
    match end {
        End::Halt | End::Shutdown => Exit::Shutdown,
        End::Fault(detail) => Exit::Fault { detail },
    }
}
