//! The virtio side: configuration space, queues and the gate.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

use virtio_bindings::{virtio_ids::VIRTIO_ID_NET, virtio_net as net};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::io::{HEADER_LEN, MAX_FRAME, receive, transmit};
use super::{NetStateV1, state};
use crate::virtio::chain::{Buffers, total_len};
use crate::virtio::{DeviceRestoreError, Rings, VirtioDevice, copy_config};

const RX_QUEUE: usize = 0;
const TX_QUEUE: usize = 1;
const MAX_BUFFERS: usize = 64;
/// Most frames thrown away when the gate opens; a flood must not hold the loop.
const MAX_STALE_FRAMES: usize = 4096;

/// The guest's hardware address unless told otherwise. Machines may share it: each has a network of its own.
pub const DEFAULT_MAC: [u8; 6] = [0x02, 0x66, 0x6b, 0x64, 0x00, 0x01];

/// What a network device is handed.
#[derive(Debug)]
pub struct NetResources {
    /// A tap with `IFF_VNET_HDR`, a header of 12 bytes, and `O_NONBLOCK`; without one nothing ever passes.
    pub tap: Option<File>,
}

/// A virtio network device.
#[derive(Debug)]
pub struct Net {
    pub(super) mac: [u8; 6],
    pub(super) active: bool,
    tap: Option<File>,
    epoll: Epoll,
    open: bool,
    /// The tap may have frames. It is watched edge-triggered, so that frames that wait for the guest's
    /// buffers cause no wake-ups.
    readable: bool,
    buffers: Buffers,
    buffer: Vec<u8>,
    dropped: u64,
}

impl Net {
    /// A device with the usual hardware address, whose gate is closed.
    ///
    /// # Errors
    /// The host refused an epoll set.
    pub fn new(resources: NetResources) -> io::Result<Self> {
        Self::with_mac(DEFAULT_MAC, resources)
    }

    /// A device with this hardware address, whose gate is closed.
    ///
    /// # Errors
    /// The host refused an epoll set.
    pub fn with_mac(mac: [u8; 6], resources: NetResources) -> io::Result<Self> {
        Ok(Self {
            mac,
            active: false,
            tap: resources.tap,
            epoll: Epoll::new()?,
            open: false,
            readable: false,
            buffers: Buffers::default(),
            buffer: Vec::new(),
            dropped: 0,
        })
    }

    /// Lets frames pass from now on, where there is a tap. Those that came in earlier are dropped.
    ///
    /// # Errors
    /// The host refused to watch the tap; the gate stays closed.
    pub fn open_gate(&mut self) -> io::Result<()> {
        let Some(mut tap) = self.tap.as_ref().filter(|_| !self.open) else { return Ok(()) };
        let mut stale = [0; 64];
        for _ in 0..MAX_STALE_FRAMES {
            match io::Read::read(&mut tap, &mut stale) {
                Ok(len) if len > 0 => self.dropped += 1,
                _ => break,
            }
        }
        let interest = EventSet::IN | EventSet::EDGE_TRIGGERED;
        self.epoll.ctl(ControlOperation::Add, tap.as_raw_fd(), EpollEvent::new(interest, 0))?;
        self.open = true;
        self.readable = true;
        Ok(())
    }

    /// Whether frames pass.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Frames that did not get through: sent before the gate opened, or not taken by the tap.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn send(&mut self, rings: &mut Rings<'_>) {
        while let Some(chain) = rings.pop(TX_QUEUE) {
            let whole = chain.collect(MAX_BUFFERS, &mut self.buffers).is_ok();
            let segments = self.buffers.readable();
            if !whole || !(HEADER_LEN..=MAX_FRAME).contains(&total_len(segments)) {
                rings.fault();
            } else {
                let sent = match self.tap.as_mut().filter(|_| self.open) {
                    Some(tap) => transmit(tap, rings.ram(), segments, &mut self.buffer).is_ok(),
                    None => false,
                };
                self.dropped += u64::from(!sent);
            }
            rings.put(TX_QUEUE, chain.head(), 0);
        }
    }

    fn receive(&mut self, rings: &mut Rings<'_>) {
        while let Some(tap) = self.tap.as_mut().filter(|_| self.open && self.readable) {
            let Some(chain) = rings.pop(RX_QUEUE) else { return };
            let whole = chain.collect(MAX_BUFFERS, &mut self.buffers).is_ok();
            let segments = self.buffers.writable();
            if !whole || total_len(segments) < HEADER_LEN {
                rings.fault();
                rings.put(RX_QUEUE, chain.head(), 0);
                continue;
            }
            match receive(tap, rings.ram(), segments, &mut self.buffer) {
                Ok(len) if len > 0 => rings.put(RX_QUEUE, chain.head(), len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => rings.undo_pop(RX_QUEUE),
                // Nothing more, or the tap is gone: the next edge says so.
                _ => {
                    self.readable = false;
                    rings.undo_pop(RX_QUEUE);
                }
            }
        }
    }
}

impl VirtioDevice for Net {
    type State = NetStateV1;
    type Resources = NetResources;

    const DEVICE_ID: u32 = VIRTIO_ID_NET;
    const QUEUE_SIZES: &'static [u16] = &[256, 256];

    /// The guest may leave checksums and segmentation to the host, whose kernel takes both from a tap as
    /// it is. The other direction would need the tap to be set up for it, and larger buffers.
    fn features(&self) -> u64 {
        [
            net::VIRTIO_NET_F_MAC,
            net::VIRTIO_NET_F_CSUM,
            net::VIRTIO_NET_F_HOST_TSO4,
            net::VIRTIO_NET_F_HOST_TSO6,
        ]
        .iter()
        .fold(0, |bits, feature| bits | 1 << feature)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        copy_config(&self.mac, offset, data);
    }

    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    fn activate(&mut self, rings: &mut Rings<'_>) {
        self.active = true;
        self.receive(rings);
    }

    fn reset(&mut self) {
        self.active = false;
        self.drain_events();
    }

    fn process_queue(&mut self, index: usize, rings: &mut Rings<'_>) {
        if index == TX_QUEUE {
            self.send(rings);
        }
        self.receive(rings);
    }

    fn event_fd(&self) -> Option<RawFd> {
        Some(self.epoll.as_raw_fd())
    }

    fn on_event(&mut self, rings: &mut Rings<'_>) {
        self.drain_events();
        self.receive(rings);
    }

    fn save(&self) -> NetStateV1 {
        state::save(self)
    }

    fn restore(state: NetStateV1, resources: NetResources) -> Result<Self, DeviceRestoreError> {
        state::restore(state, resources)
    }
}

impl Net {
    /// Takes the edge out of the epoll set and remembers it.
    fn drain_events(&mut self) {
        let mut events = [EpollEvent::default()];
        if self.epoll.wait(0, &mut events).is_ok_and(|count| count > 0) {
            self.readable = true;
        }
    }
}
