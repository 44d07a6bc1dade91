//! The devices of a machine, as the event loop and the vCPUs see them.

mod wiring;

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_devices::balloon::Balloon;
use forkd_devices::block::{Block, BlockConfig};
use forkd_devices::bus::Bus;
use forkd_devices::faults::GuestFaults;
use forkd_devices::net::{Net, NetResources};
use forkd_devices::rng::{Rng, RngResources};
use forkd_devices::serial::SerialPort;
use forkd_devices::virtio::mmio::NOTIFY_OFFSET;
use forkd_devices::virtio::{MmioTransport, VirtioSlot};
use forkd_devices::vsock::{Vsock, VsockResources};
use forkd_kvm::{IoHandler, Vm};
use forkd_memory::GuestRam;
use forkd_memory::extents::Extent;
use forkd_protocol::control::FdRole;
use forkd_protocol::guest::GUEST_CID;
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent};
use vmm_sys_util::eventfd::EventFd;

use self::wiring::{Parts, Wiring, block_resources, console_log, disk_id};
use crate::error::MonitorError;
use crate::handed::{DiskFiles, Handed};
use crate::layout;
use crate::state::DevicesState;

type Slot<D> = Arc<Mutex<MmioTransport<D>>>;

/// Low byte of an event's token where it is the device's own descriptor, not a queue.
const TOKEN_DEVICE: u64 = 0xff;
/// Token of console input.
const TOKEN_CONSOLE: u64 = u64::MAX;
const CONSOLE_CHUNK: usize = 256;
const EVENTS: usize = 32;

/// What the devices are built from.
#[derive(Debug)]
pub struct DeviceFiles {
    disks: Vec<DiskFiles>,
    vsock: UnixListener,
    entropy: File,
    tap: Option<File>,
    console: Option<File>,
    console_input: Option<File>,
}

impl DeviceFiles {
    /// Takes what the devices need out of what was handed in.
    ///
    /// # Errors
    /// Something is missing.
    pub fn take(handed: &mut Handed, entropy: File) -> Result<Self, MonitorError> {
        let vsock = handed.file(FdRole::VsockListener)?;
        Ok(Self {
            disks: handed.disks()?,
            vsock: std::os::fd::OwnedFd::from(vsock).into(),
            entropy,
            tap: handed.take(FdRole::Tap).map(File::from),
            console: handed.take(FdRole::Console).map(File::from),
            console_input: handed.take(FdRole::ConsoleInput).map(File::from),
        })
    }
}

/// All devices of one machine.
#[derive(Debug)]
pub struct Devices {
    disks: Vec<Slot<Block>>,
    vsock: Slot<Vsock>,
    rng: Slot<Rng>,
    net: Option<Slot<Net>>,
    balloon: Option<Slot<Balloon>>,
    serial: Arc<Mutex<SerialPort>>,
    console_input: Option<File>,
    slots: Slots,
    faults: GuestFaults,
    epoll: Epoll,
    reset: EventFd,
    /// Doorbells that KVM does not answer yet, the next one last.
    exiting: Vec<Doorbell>,
}

/// The notification of one queue of one slot.
#[derive(Debug, Clone, Copy)]
struct Doorbell {
    slot: u32,
    queue: u32,
}

/// The places of the virtio devices, in the order of their addresses.
struct Slots(Vec<Arc<Mutex<dyn VirtioSlot>>>);

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Slots").field(&self.0.len()).finish()
    }
}

/// The two buses, as vCPUs see them.
#[derive(Debug, Default)]
pub struct Buses {
    ports: Bus,
    mmio: Bus,
}

impl IoHandler for Buses {
    fn port_read(&self, port: u16, data: &mut [u8]) {
        self.ports.read(u64::from(port), data);
    }

    fn port_write(&self, port: u16, data: &[u8]) {
        self.ports.write(u64::from(port), data);
    }

    fn mmio_read(&self, address: u64, data: &mut [u8]) {
        self.mmio.read(address, data);
    }

    fn mmio_write(&self, address: u64, data: &[u8]) {
        self.mmio.write(address, data);
    }
}

impl Devices {
    /// Devices of a machine that boots.
    ///
    /// # Errors
    /// Files that do not fit, or KVM's refusal.
    pub fn new(vm: &Vm, ram: &GuestRam, files: DeviceFiles) -> Result<(Self, Buses), MonitorError> {
        let DeviceFiles { disks: disk_files, vsock: listener, entropy, tap, console, console_input } = files;
        let mut wiring = Wiring::new(vm, ram);
        let mut disks = Vec::new();
        for (number, parts) in disk_files.into_iter().enumerate() {
            let resources = block_resources(parts)?;
            disks.push(wiring.fresh(Block::new(BlockConfig { id: disk_id(number) }, resources)?)?);
        }
        let vsock = Vsock::new(GUEST_CID, VsockResources { listener }).map_err(MonitorError::Events)?;
        let vsock = wiring.fresh(vsock)?;
        let rng = wiring.fresh(Rng::new(RngResources { source: entropy }))?;
        let mut net = Net::new(NetResources { tap }).map_err(MonitorError::Events)?;
        // Nobody else is who this machine is.
        net.open_gate().map_err(MonitorError::Events)?;
        let net = Some(wiring.fresh(net)?);
        let balloon = Some(wiring.fresh(Balloon::new())?);
        let serial = SerialPort::new(wiring.irq(layout::SERIAL_GSI)?, console_log(console));
        wiring.finish(Parts { disks, vsock, rng, net, balloon, serial, console_input })
    }

    /// Devices of a machine that is restored.
    ///
    /// # Errors
    /// State and files that do not fit each other, or KVM's refusal.
    pub fn restore(
        vm: &Vm,
        ram: &GuestRam,
        state: DevicesState,
        files: DeviceFiles,
    ) -> Result<(Self, Buses), MonitorError> {
        let DevicesState { disks: disk_states, vsock, rng, net, serial, balloon } = state;
        let DeviceFiles { disks: disk_files, vsock: listener, entropy, tap, console, console_input } = files;
        if disk_states.len() != disk_files.len() || (net.is_none() && tap.is_some()) {
            return Err(MonitorError::DeviceCount);
        }
        let mut wiring = Wiring::new(vm, ram);
        let mut disks = Vec::new();
        for (state, parts) in disk_states.into_iter().zip(disk_files) {
            disks.push(wiring.restored::<Block>(state, block_resources(parts)?)?);
        }
        let vsock = wiring.restored::<Vsock>(vsock, VsockResources { listener })?;
        let rng = wiring.restored::<Rng>(rng, RngResources { source: entropy })?;
        // A guest that booted without one has none; the same goes for the balloon.
        let net = net.map(|state| wiring.restored::<Net>(state, NetResources { tap })).transpose()?;
        let balloon = balloon.map(|state| wiring.restored::<Balloon>(state, ())).transpose()?;
        let serial = SerialPort::restore(serial, wiring.irq(layout::SERIAL_GSI)?, console_log(console))?;
        wiring.finish(Parts { disks, vsock, rng, net, balloon, serial, console_input })
    }

    /// Number of virtio devices.
    pub fn virtio_count(&self) -> u32 {
        u32::try_from(self.slots.0.len()).unwrap_or(u32::MAX)
    }

    /// The saved form. The event loop and the vCPUs stand still.
    pub fn save(&self) -> DevicesState {
        DevicesState {
            disks: self.disks.iter().map(|disk| lock(disk).save()).collect(),
            vsock: lock(&self.vsock).save(),
            rng: lock(&self.rng).save(),
            net: self.net.as_ref().map(|net| lock(net).save()),
            serial: lock(&self.serial).save(),
            balloon: self.balloon.as_ref().map(|balloon| lock(balloon).save()),
        }
    }

    /// What the top of disk `number` holds.
    pub fn top_extents(&self, number: usize) -> Vec<Extent> {
        self.disks.get(number).map_or_else(Vec::new, |disk| lock(disk).device().disk().top_extents())
    }

    /// Which file each disk is written to: inode numbers.
    ///
    /// # Errors
    /// A file could not be looked at.
    pub fn top_inodes(&self) -> std::io::Result<Vec<u64>> {
        self.disks.iter().map(|disk| lock(disk).device().disk().top_inode()).collect()
    }

    /// Freezes the top of disk `number`; see [`Block::freeze_top`].
    pub fn freeze_top(&self, number: usize, new_top: File, frozen: Option<File>) {
        if let Some(disk) = self.disks.get(number) {
            lock(disk).device_mut().freeze_top(new_top, frozen);
        }
    }

    /// Connects into the guest as a client of the vsock socket does.
    ///
    /// # Errors
    /// The socket cannot be made not to block.
    pub fn add_vsock_client(&self, stream: UnixStream) -> std::io::Result<()> {
        let mut vsock = lock(&self.vsock);
        vsock.device_mut().add_client(stream)?;
        vsock.kick_all();
        Ok(())
    }

    /// Lets frames pass from now on.
    ///
    /// # Errors
    /// The host refused to watch the tap.
    pub fn open_network(&self) -> std::io::Result<()> {
        let Some(net) = &self.net else { return Ok(()) };
        let mut net = lock(net);
        net.device_mut().open_gate()?;
        net.kick_all();
        Ok(())
    }

    /// Number of disks.
    pub fn disk_count(&self) -> usize {
        self.disks.len()
    }

    /// Has every queue looked at once: what was announced before a save is not in it.
    pub fn kick_all(&self) {
        self.slots.0.iter().for_each(|slot| lock(slot).kick_all());
    }

    /// Whether some doorbell still makes its vCPU leave the guest.
    pub fn has_exiting_doorbells(&self) -> bool {
        !self.exiting.is_empty()
    }

    /// Has KVM answer one more doorbell, so that its vCPU need not leave the guest for it.
    ///
    /// Each waits for a grace period of KVM's bus, so a machine runs before it has them. A doorbell that cannot be
    /// connected goes on to be answered by [`IoHandler::mmio_write`], which signals the same event.
    pub fn connect_next_doorbell(&mut self, vm: &Vm) {
        let Some(Doorbell { slot: index, queue }) = self.exiting.pop() else { return };
        let Some(slot) = self.slots.0.get(index as usize) else { return };
        let address = layout::virtio_base(index) + NOTIFY_OFFSET;
        let Some(Ok(event)) = lock(slot).queue_event(queue as usize).map(EventFd::try_clone) else { return };
        let _ = vm.connect_doorbell(&event, address, queue);
    }

    /// Requests of the guest that were refused as malformed.
    pub fn guest_faults(&self) -> u64 {
        self.faults.count()
    }

    /// Console output that was not kept.
    pub fn console_dropped(&self) -> u64 {
        lock(&self.serial).dropped_output()
    }

    /// Readable when a device has work.
    pub fn epoll_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Readable once the guest has asked to be reset.
    pub fn reset_event(&self) -> &EventFd {
        &self.reset
    }

    /// Does the work that waits, without waiting for more.
    ///
    /// # Errors
    /// Waiting failed.
    pub fn serve(&mut self) -> Result<(), MonitorError> {
        let mut events = [EpollEvent::default(); EVENTS];
        let count = match self.epoll.wait(0, &mut events) {
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(()),
            other => other.map_err(MonitorError::Events)?,
        };
        for event in events.iter().take(count) {
            match event.data() {
                TOKEN_CONSOLE => self.type_input(),
                token => self.serve_slot(token),
            }
        }
        Ok(())
    }

    fn serve_slot(&self, token: u64) {
        let index = usize::try_from(token >> 8).unwrap_or(usize::MAX);
        let Some(slot) = self.slots.0.get(index) else { return };
        match token & 0xff {
            TOKEN_DEVICE => lock(slot).process_event(),
            queue => lock(slot).process_queue(usize::try_from(queue).unwrap_or(usize::MAX)),
        }
    }

    fn type_input(&mut self) {
        let Some(input) = &mut self.console_input else { return };
        let mut chunk = [0u8; CONSOLE_CHUNK];
        match std::io::Read::read(input, &mut chunk) {
            Ok(0) | Err(_) => {
                let _ = self.epoll.ctl(ControlOperation::Delete, input.as_raw_fd(), EpollEvent::default());
                self.console_input = None;
            }
            Ok(len) => {
                lock(&self.serial).enqueue(chunk.get(..len).unwrap_or_default());
            }
        }
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
