//! The virtio side, and the table of connections.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use super::connection::{Connection, Phase};
use super::host::{Host, HostEvent};
use super::packet::Header;
use super::restored::Gate;
use super::{VsockStateV1, state};
use crate::virtio::chain::Buffers;
use crate::virtio::{DeviceRestoreError, Rings, VirtioDevice, copy_config};

/// The host's address.
pub const HOST_CID: u64 = 2;
/// The guest's address: machines do not share an address space, so all have the same.
pub const DEFAULT_GUEST_CID: u64 = 3;

pub(super) const RX_QUEUE: usize = 0;
pub(super) const TX_QUEUE: usize = 1;
pub(super) const EVENT_QUEUE: usize = 2;

/// Host ports are counted from here, away from the numbers that services have.
pub(super) const FIRST_PORT: u32 = 1 << 30;
/// Most connections at a time; further clients wait in the listener's backlog.
pub(super) const MAX_CONNECTIONS: usize = 1024;
/// Most clients that have not said which port they want; the oldest makes room.
pub(super) const MAX_HANDSHAKES: usize = 64;
/// How long a client may take to say it.
pub(super) const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Most bytes that wait for slow clients, of all connections together.
pub(super) const MAX_BACKLOG_TOTAL: usize = 32 << 20;

/// What a socket device is handed.
#[derive(Debug)]
pub struct VsockResources {
    /// Already listening.
    pub listener: UnixListener,
}

/// A virtio socket device.
#[derive(Debug)]
pub struct Vsock {
    pub(super) guest_cid: u64,
    pub(super) active: bool,
    pub(super) next_port: u32,
    pub(super) gate: Gate,
    pub(super) host: Host,
    /// By host port.
    pub(super) connections: HashMap<u32, Connection>,
    /// Clients that have not said which port they want, the oldest first.
    handshakes: VecDeque<u32>,
    /// Connections with packets for the guest, in turn.
    pub(super) ready: VecDeque<u32>,
    /// Resets for packets of no connection.
    pub(super) resets: VecDeque<Header>,
    pub(super) backlog_total: usize,
    pub(super) buffers: Buffers,
}

impl Vsock {
    /// A device whose guest has the address `guest_cid`.
    ///
    /// # Errors
    /// The host refused an epoll set or the listener's mode.
    pub fn new(guest_cid: u64, resources: VsockResources) -> io::Result<Self> {
        Ok(Self {
            guest_cid,
            active: false,
            next_port: FIRST_PORT,
            gate: Gate::Open,
            host: Host::new(resources.listener)?,
            connections: HashMap::new(),
            handshakes: VecDeque::new(),
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            backlog_total: 0,
            buffers: Buffers::default(),
        })
    }

    /// Connections there are, unfinished handshakes included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// Lets a client in that this process is itself: what comes out of `stream` is what clients of the listener say. It
    /// is looked at when the device next is.
    ///
    /// # Errors
    /// The socket cannot be made not to block.
    pub fn add_client(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        self.host.add_own(stream);
        Ok(())
    }

    /// Whether a restored guest still has to confirm that its old connections are gone.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.gate != Gate::Open
    }

    /// Lets in the clients that wait, if the guest may be bothered.
    fn admit(&mut self, rings: &mut Rings<'_>) {
        if !self.gate.advance(rings, &mut self.buffers) {
            return;
        }
        while self.connections.len() < MAX_CONNECTIONS {
            let Some(stream) = self.host.accept() else { break };
            let port = self.free_port();
            // A client that cannot be watched is dropped, which it notices.
            if self.host.watch(&stream, port).is_ok() {
                self.connections.insert(port, Connection::new(stream, Instant::now()));
                self.handshakes.push_back(port);
                self.shake_hands(port);
            }
        }
    }

    fn free_port(&mut self) -> u32 {
        loop {
            let port = self.next_port;
            self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
            // Ends: there are far more ports than connections. The last number means "any port".
            if port != u32::MAX && !self.connections.contains_key(&port) {
                return port;
            }
        }
    }

    fn shake_hands(&mut self, port: u32) {
        let Some(connection) = self.connections.get_mut(&port) else { return };
        connection.shake_hands();
        self.tend(port);
        if self.handshakes.len() > MAX_HANDSHAKES {
            self.drop_handshakes(|waiting, _| waiting > MAX_HANDSHAKES);
        }
        if !self.handshakes.is_empty() {
            // Without a timer only the bound on their number limits them.
            let _ = self.host.start_timer(HANDSHAKE_TIME);
        }
    }

    /// Drops the oldest handshake as long as `overdue` says so, given their number and its start.
    fn drop_handshakes(&mut self, overdue: impl Fn(usize, Instant) -> bool) {
        while let Some(port) = self.handshakes.front().copied() {
            match self.connections.get(&port).map(|connection| connection.phase) {
                Some(Phase::Handshake { since }) if !overdue(self.handshakes.len(), since) => return,
                Some(Phase::Handshake { .. }) => self.remove(port),
                _ => {}
            }
            self.handshakes.pop_front();
        }
    }

    /// After anything happened to a connection: removes it, or queues it if it has packets, and watches
    /// for what it waits for.
    pub(super) fn tend(&mut self, port: u32) {
        let Some(connection) = self.connections.get_mut(&port) else { return };
        if !matches!(connection.phase, Phase::Handshake { .. }) {
            self.handshakes.retain(|waiting| *waiting != port);
        }
        self.backlog_total -= connection.noted_backlog;
        connection.noted_backlog = connection.backlog_len();
        self.backlog_total += connection.noted_backlog;
        let waits = connection.noted_backlog > 0;
        if waits != connection.watches_writable {
            connection.watches_writable = waits;
            if self.host.watch_writable(&connection.stream, port, waits).is_err() {
                connection.must_reset();
            }
        }
        if connection.phase == Phase::Closed {
            self.remove(port);
        } else if !connection.queued && connection.has_packets() {
            connection.queued = true;
            self.ready.push_back(port);
        }
    }

    fn remove(&mut self, port: u32) {
        if let Some(connection) = self.connections.remove(&port) {
            self.host.unwatch(&connection.stream);
            self.backlog_total -= connection.noted_backlog;
        }
    }

    fn client_event(&mut self, port: u32, readable: bool, writable: bool, hung_up: bool) {
        let Some(connection) = self.connections.get_mut(&port) else { return };
        if readable {
            connection.now_readable();
        }
        if hung_up {
            connection.now_hung_up();
        }
        if writable {
            connection.flush();
        }
        match connection.phase {
            Phase::Handshake { .. } => self.shake_hands(port),
            _ => self.tend(port),
        }
    }
}

impl VirtioDevice for Vsock {
    type State = VsockStateV1;
    type Resources = VsockResources;

    const DEVICE_ID: u32 = virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
    /// A Linux guest fills the first with buffers of 4 KiB and keeps eight in the last.
    const QUEUE_SIZES: &'static [u16] = &[128, 128, 16];

    fn features(&self) -> u64 {
        0
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&self.guest_cid.to_le_bytes(), offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, rings: &mut Rings<'_>) {
        self.active = true;
        if self.host.listen().is_ok() {
            self.admit(rings);
        }
        self.send(rings);
    }

    fn reset(&mut self) {
        let ports: Vec<u32> = self.connections.keys().copied().collect();
        ports.into_iter().for_each(|port| self.remove(port));
        self.host.stop();
        self.handshakes.clear();
        self.ready.clear();
        self.resets.clear();
        self.gate = Gate::Open;
        self.active = false;
    }

    fn process_queue(&mut self, index: usize, rings: &mut Rings<'_>) {
        if index == TX_QUEUE {
            self.receive(rings);
        }
        self.admit(rings);
        self.send(rings);
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(self.host.fd())
    }

    fn on_event(&mut self, rings: &mut Rings<'_>) {
        let mut timer_ran_out = false;
        for event in self.host.events() {
            match event {
                HostEvent::Clients => {}
                HostEvent::Timer => timer_ran_out = true,
                HostEvent::Client { port, readable, writable, hung_up } => {
                    self.client_event(port, readable, writable, hung_up);
                }
            }
        }
        // After the sockets: whoever spoke just in time, or while the machine was paused, is not late.
        if timer_ran_out {
            let now = Instant::now();
            self.drop_handshakes(|_, since| now.saturating_duration_since(since) >= HANDSHAKE_TIME);
            if !self.handshakes.is_empty() {
                let _ = self.host.start_timer(HANDSHAKE_TIME);
            }
        }
        self.admit(rings);
        self.send(rings);
    }

    fn save(&self) -> VsockStateV1 {
        state::save(self)
    }

    fn restore(state: VsockStateV1, resources: VsockResources) -> Result<Self, DeviceRestoreError> {
        state::restore(state, resources)
    }
}
