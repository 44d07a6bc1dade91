//! How devices are placed: addresses, interrupt lines, the event loop's view of them.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use forkd_devices::balloon::Balloon;
use forkd_devices::block::{BLOCK_SIZE, Block, BlockResources, DiskLayer};
use forkd_devices::console::{ConsoleLog, DEFAULT_CAP};
use forkd_devices::faults::GuestFaults;
use forkd_devices::i8042::{I8042, I8042_BASE, I8042_LEN};
use forkd_devices::net::Net;
use forkd_devices::rng::Rng;
use forkd_devices::serial::{SERIAL_LEN, SerialPort};
use forkd_devices::virtio::mmio::MMIO_LEN;
use forkd_devices::virtio::{MmioResources, MmioTransport, VirtioDevice, VirtioSlot};
use forkd_devices::vsock::Vsock;
use forkd_kvm::Vm;
use forkd_memory::GuestRam;
use forkd_memory::extents::read_table;
use vmm_sys_util::epoll::Epoll;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Buses, Devices, Doorbell, Slot, Slots, TOKEN_CONSOLE, TOKEN_DEVICE, lock};
use crate::error::MonitorError;
use crate::handed::{DiskFiles, FromStart};
use crate::layout;
use crate::watch::watch;

/// Devices that have their places.
pub(super) struct Parts {
    pub(super) disks: Vec<Slot<Block>>,
    pub(super) vsock: Slot<Vsock>,
    pub(super) rng: Slot<Rng>,
    pub(super) net: Option<Slot<Net>>,
    pub(super) balloon: Option<Slot<Balloon>>,
    pub(super) serial: SerialPort,
    pub(super) console_input: Option<File>,
}

/// Connects devices to addresses and interrupt lines, one place after the other.
pub(super) struct Wiring<'a> {
    vm: &'a Vm,
    ram: &'a GuestRam,
    faults: GuestFaults,
    buses: Buses,
    slots: Vec<Arc<Mutex<dyn VirtioSlot>>>,
}

impl<'a> Wiring<'a> {
    pub(super) fn new(vm: &'a Vm, ram: &'a GuestRam) -> Self {
        Self { vm, ram, faults: GuestFaults::new(), buses: Buses::default(), slots: Vec::new() }
    }

    pub(super) fn irq(&self, gsi: u32) -> Result<EventFd, MonitorError> {
        let event = event()?;
        self.vm.connect_irq(&event, gsi)?;
        Ok(event)
    }

    pub(super) fn fresh<D>(&mut self, device: D) -> Result<Slot<D>, MonitorError>
    where
        D: VirtioDevice + 'static,
        MmioTransport<D>: VirtioSlot,
    {
        let resources = self.resources(D::QUEUE_SIZES.len())?;
        self.place(MmioTransport::new(device, resources)?)
    }

    pub(super) fn restored<D>(
        &mut self,
        state: forkd_devices::virtio::TransportStateV1<D::State>,
        device: D::Resources,
    ) -> Result<Slot<D>, MonitorError>
    where
        D: VirtioDevice + 'static,
        MmioTransport<D>: VirtioSlot,
    {
        let resources = self.resources(D::QUEUE_SIZES.len())?;
        self.place(MmioTransport::restore(state, device, resources)?)
    }

    fn index(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
    }

    fn resources(&self, queues: usize) -> Result<MmioResources, MonitorError> {
        if self.index() >= layout::VIRTIO_MAX {
            return Err(MonitorError::TooManyDevices);
        }
        Ok(MmioResources {
            ram: self.ram.clone(),
            interrupt: self.irq(layout::VIRTIO_GSI + self.index())?,
            queue_events: (0..queues).map(|_| event()).collect::<Result<_, _>>()?,
            faults: self.faults.clone(),
        })
    }

    fn place<D>(&mut self, transport: MmioTransport<D>) -> Result<Slot<D>, MonitorError>
    where
        D: VirtioDevice + 'static,
        MmioTransport<D>: VirtioSlot,
    {
        let slot = Arc::new(Mutex::new(transport));
        self.buses.mmio.insert(layout::virtio_base(self.index()), MMIO_LEN, slot.clone())?;
        self.slots.push(slot.clone());
        Ok(slot)
    }

    pub(super) fn finish(mut self, parts: Parts) -> Result<(Devices, Buses), MonitorError> {
        let Parts { disks, vsock, rng, net, balloon, serial, console_input } = parts;
        let serial = Arc::new(Mutex::new(serial));
        let reset = event()?;
        let i8042 = Arc::new(Mutex::new(I8042::new(reset.try_clone().map_err(MonitorError::Events)?)));
        let ports = &mut self.buses.ports;
        ports.insert(layout::SERIAL_PORT.into(), SERIAL_LEN, serial.clone())?;
        ports.insert(I8042_BASE, I8042_LEN, i8042)?;
        let epoll = Epoll::new().map_err(MonitorError::Events)?;
        let mut exiting = Vec::new();
        for (index, slot) in (0u32..).zip(&self.slots) {
            let slot = lock(slot);
            watch_slot(&epoll, index.into(), &*slot)?;
            exiting.extend((0u32..).take(slot.queue_count()).map(|queue| Doorbell { slot: index, queue }));
        }
        if let Some(input) = &console_input {
            watch(&epoll, input.as_raw_fd(), TOKEN_CONSOLE)?;
        }
        let (slots, faults) = (Slots(self.slots), self.faults);
        let devices = Devices {
            disks,
            vsock,
            rng,
            net,
            balloon,
            serial,
            console_input,
            slots,
            faults,
            epoll,
            reset,
            exiting,
        };
        Ok((devices, self.buses))
    }
}

fn watch_slot(epoll: &Epoll, index: u64, slot: &dyn VirtioSlot) -> Result<(), MonitorError> {
    for queue in 0..slot.queue_count() {
        if let Some(event) = slot.queue_event(queue) {
            watch(epoll, event.as_raw_fd(), index << 8 | queue as u64)?;
        }
    }
    match slot.event_fd() {
        Some(fd) => watch(epoll, fd, index << 8 | TOKEN_DEVICE),
        None => Ok(()),
    }
}

fn event() -> Result<EventFd, MonitorError> {
    EventFd::new(EFD_NONBLOCK).map_err(MonitorError::Events)
}

pub(super) fn block_resources(files: DiskFiles) -> Result<BlockResources, MonitorError> {
    let DiskFiles { base, layers, top } = files;
    let blocks = base.metadata().map_err(MonitorError::Events)?.len().div_ceil(BLOCK_SIZE);
    let mut frozen = Vec::with_capacity(layers.len());
    for (data, table) in layers {
        let extents = read_table(&mut BufReader::new(FromStart::new(&table)), blocks)?;
        frozen.push(DiskLayer { data, extents });
    }
    Ok(BlockResources { base, layers: frozen, top })
}

pub(super) fn console_log(file: Option<File>) -> ConsoleLog {
    file.map_or_else(ConsoleLog::sink, |file| ConsoleLog::new(file, DEFAULT_CAP))
}

/// The serial number of disk `number`, by which a guest finds it whatever its name.
pub(super) fn disk_id(number: usize) -> [u8; 20] {
    let mut id = [0; 20];
    for (to, from) in id.iter_mut().zip(format!("forkd-disk{number}").bytes()) {
        *to = from;
    }
    id
}
