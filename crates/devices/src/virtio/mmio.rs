//! The virtio-mmio transport (version 2): the registers a driver sees, and the lifecycle behind them.
//!
//! ```text
//!  reset ─▶ ACKNOWLEDGE ─▶ DRIVER ─▶ FEATURES_OK ─▶ DRIVER_OK (live: queues are served)
//!    ▲                                                   │ a ring breaks
//!    └────────────── status 0 ◀── NEEDS_RESET, FAILED ◀──┘
//! ```

use std::os::fd::RawFd;

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::QueueT;
use vmm_sys_util::eventfd::EventFd;

use super::device::{VirtioDevice, VirtioSlot};
use super::queue::VirtQueue;
use super::registers::{self as reg, status};
use super::{DeviceRestoreError, Interrupt, Rings, TransportStateV1};
use crate::GuestRam;
use crate::bus::BusDevice;
use crate::faults::GuestFaults;

/// Length of the address range of one device.
pub const MMIO_LEN: u64 = 0x1000;
/// Offset of the register that announces work for a queue: where ioeventfds go, one per queue, the
/// queue's index being the 32-bit value to match.
pub const NOTIFY_OFFSET: u64 = reg::QUEUE_NOTIFY;

const RING_FEATURES: u64 =
    1 << VIRTIO_F_VERSION_1 | 1 << VIRTIO_RING_F_EVENT_IDX | 1 << VIRTIO_RING_F_INDIRECT_DESC;

/// What a transport is handed.
#[derive(Debug)]
pub struct MmioResources {
    /// Guest memory.
    pub ram: GuestRam,
    /// The eventfd that interrupts the guest (irqfd, edge).
    pub interrupt: EventFd,
    /// One eventfd per queue, `EFD_NONBLOCK`; the same descriptors serve as ioeventfds.
    pub queue_events: Vec<EventFd>,
    /// Where the guest's faults are counted.
    pub faults: GuestFaults,
}

/// The registers, queues and device at one place of the memory-mapped bus.
#[derive(Debug)]
pub struct MmioTransport<D: VirtioDevice> {
    device: D,
    ram: GuestRam,
    interrupt: Interrupt,
    queue_events: Vec<EventFd>,
    faults: GuestFaults,
    queues: Vec<VirtQueue>,
    driver_features: u64,
    device_features_select: u32,
    driver_features_select: u32,
    queue_select: u32,
    status: u32,
    config_generation: u32,
}

impl<D: VirtioDevice> MmioTransport<D> {
    /// A transport in its reset state.
    ///
    /// # Errors
    /// The number of queue eventfds does not fit the device.
    pub fn new(device: D, resources: MmioResources) -> Result<Self, DeviceRestoreError> {
        let MmioResources { ram, interrupt, queue_events, faults } = resources;
        check_count(D::QUEUE_SIZES.len(), queue_events.len())?;
        let queues = D::QUEUE_SIZES
            .iter()
            .enumerate()
            .map(|(index, size)| VirtQueue::new(*size).map_err(|_| DeviceRestoreError::Queue(index)));
        Ok(Self {
            device,
            queues: queues.collect::<Result<_, _>>()?,
            ram,
            interrupt: Interrupt::new(interrupt, 0),
            queue_events,
            faults,
            driver_features: 0,
            device_features_select: 0,
            driver_features_select: 0,
            queue_select: 0,
            status: 0,
            config_generation: 0,
        })
    }

    /// The saved form. The event loop and the vCPUs must be at rest.
    #[must_use]
    pub fn save(&self) -> TransportStateV1<D::State> {
        TransportStateV1 {
            device_id: D::DEVICE_ID,
            driver_features: self.driver_features,
            device_features_select: self.device_features_select,
            driver_features_select: self.driver_features_select,
            queue_select: self.queue_select,
            status: self.status,
            interrupt_status: self.interrupt.status(),
            config_generation: self.config_generation,
            queues: self.queues.iter().map(VirtQueue::save).collect(),
            device: self.device.save(),
        }
    }

    /// Rebuilds transport and device. Nothing happens until [`VirtioSlot::kick_all`].
    ///
    /// # Errors
    /// State that is impossible, or does not fit the guest memory, the device or the resources.
    pub fn restore(
        state: TransportStateV1<D::State>,
        device: D::Resources,
        resources: MmioResources,
    ) -> Result<Self, DeviceRestoreError> {
        let TransportStateV1 {
            device_id,
            driver_features,
            device_features_select,
            driver_features_select,
            queue_select,
            status,
            interrupt_status,
            config_generation,
            queues: saved_queues,
            device: device_state,
        } = state;
        if device_id != D::DEVICE_ID {
            return Err(DeviceRestoreError::WrongDevice { expected: D::DEVICE_ID, found: device_id });
        }
        let MmioResources { ram, interrupt, queue_events, faults } = resources;
        check_count(D::QUEUE_SIZES.len(), queue_events.len())?;
        check_count(D::QUEUE_SIZES.len(), saved_queues.len())?;
        let live = is_live(status);
        let mut queues = Vec::with_capacity(saved_queues.len());
        for (index, (saved, max)) in saved_queues.into_iter().zip(D::QUEUE_SIZES).enumerate() {
            queues.push(VirtQueue::restore(saved, index, *max, live, &ram)?);
        }
        let device = D::restore(device_state, device)?;
        let missing = driver_features & !(device.features() | RING_FEATURES);
        if missing != 0 && status & status::FEATURES_OK != 0 {
            return Err(DeviceRestoreError::Features { missing });
        }
        Ok(Self {
            device,
            ram,
            interrupt: Interrupt::new(interrupt, interrupt_status),
            queue_events,
            faults,
            queues,
            driver_features,
            device_features_select,
            driver_features_select,
            queue_select,
            status,
            config_generation,
        })
    }

    /// The device itself.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device itself, for what only the monitor does to it.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Whether the driver has taken the device into use.
    #[must_use]
    pub fn is_live(&self) -> bool {
        is_live(self.status)
    }

    /// Tells the driver that the configuration space changed.
    pub fn config_changed(&mut self) {
        self.config_generation = self.config_generation.wrapping_add(1);
        if self.is_live() {
            self.interrupt.config_changed();
        }
    }

    fn with_device(&mut self, work: impl FnOnce(&mut D, &mut Rings<'_>)) {
        let mut rings =
            Rings::new(&self.ram, &mut self.queues, &mut self.interrupt, &self.faults, self.driver_features);
        work(&mut self.device, &mut rings);
        let unfinished = rings.finish();
        for (index, event) in self.queue_events.iter().enumerate() {
            if unfinished & (1 << index) != 0 {
                ring_event(event);
            }
        }
        if self.status & status::NEEDS_RESET == 0 && self.queues.iter().any(|queue| queue.broken) {
            self.status |= status::NEEDS_RESET;
            self.interrupt.config_changed();
        }
    }

    fn read_register(&self, offset: u64) -> u32 {
        let queue = usize::try_from(self.queue_select).ok().and_then(|index| self.queues.get(index));
        match offset {
            reg::MAGIC_VALUE => reg::MAGIC,
            reg::VERSION_VALUE => reg::VERSION,
            reg::DEVICE_ID => D::DEVICE_ID,
            reg::VENDOR_ID => reg::VENDOR,
            reg::DEVICE_FEATURES => page_of(self.offered(), self.device_features_select),
            reg::QUEUE_NUM_MAX => queue.map_or(0, |queue| queue.ring.max_size().into()),
            reg::QUEUE_READY => queue.map_or(0, |queue| queue.ring.ready().into()),
            reg::INTERRUPT_STATUS => self.interrupt.status(),
            reg::STATUS => self.status,
            reg::CONFIG_GENERATION => self.config_generation,
            // No shared memory regions: length and base read as all ones.
            reg::SHM_LEN_LOW..=reg::SHM_BASE_HIGH => u32::MAX,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            reg::DEVICE_FEATURES_SEL => self.device_features_select = value,
            reg::DRIVER_FEATURES_SEL => self.driver_features_select = value,
            reg::DRIVER_FEATURES => self.accept_features(value),
            reg::QUEUE_SEL => self.queue_select = value,
            reg::QUEUE_NOTIFY => {
                let event = usize::try_from(value).ok().and_then(|index| self.queue_events.get(index));
                event.map_or_else(|| self.faults.record(), ring_event);
            }
            reg::INTERRUPT_ACK => self.interrupt.acknowledge(value),
            reg::STATUS => self.write_status(value),
            reg::QUEUE_NUM..=reg::QUEUE_USED_HIGH => self.write_queue(offset, value),
            _ => {}
        }
    }

    fn offered(&self) -> u64 {
        self.device.features() | RING_FEATURES
    }

    fn accept_features(&mut self, value: u32) {
        // Features are settled by FEATURES_OK; later writes are the driver's mistake.
        if self.status & (status::DRIVER | status::FEATURES_OK) != status::DRIVER {
            return self.faults.record();
        }
        let shift = match self.driver_features_select {
            0 => 0,
            1 => 32,
            _ => return,
        };
        self.driver_features &= !(u64::from(u32::MAX) << shift);
        self.driver_features |= u64::from(value) << shift;
    }

    fn write_queue(&mut self, offset: u64, value: u32) {
        // Queues are set up between FEATURES_OK and DRIVER_OK and never while they are served.
        if self.status & status::FEATURES_OK == 0 || self.is_live() {
            return self.faults.record();
        }
        let event_idx = self.driver_features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let selected = usize::try_from(self.queue_select).ok().and_then(|index| self.queues.get_mut(index));
        let Some(VirtQueue { ring, .. }) = selected else { return };
        match offset {
            reg::QUEUE_NUM => match u16::try_from(value).map(|size| ring.try_set_size(size)) {
                Ok(Ok(())) => {}
                _ => self.faults.record(),
            },
            reg::QUEUE_READY => {
                ring.set_event_idx(event_idx);
                ring.set_ready(value & 1 != 0);
            }
            reg::QUEUE_DESC_LOW => ring.set_desc_table_address(Some(value), None),
            reg::QUEUE_DESC_HIGH => ring.set_desc_table_address(None, Some(value)),
            reg::QUEUE_AVAIL_LOW => ring.set_avail_ring_address(Some(value), None),
            reg::QUEUE_AVAIL_HIGH => ring.set_avail_ring_address(None, Some(value)),
            reg::QUEUE_USED_LOW => ring.set_used_ring_address(Some(value), None),
            reg::QUEUE_USED_HIGH => ring.set_used_ring_address(None, Some(value)),
            _ => {}
        }
    }

    fn write_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        // Bits are only ever added by the driver; NEEDS_RESET is the device's.
        let added = value & !self.status & !status::NEEDS_RESET;
        let before = self.status;
        if added & status::FAILED != 0 {
            self.status |= status::FAILED;
            return self.device.reset();
        }
        self.status |= added & (status::ACKNOWLEDGE | status::DRIVER);
        if added & status::FEATURES_OK != 0 {
            self.settle_features();
        }
        if added & status::DRIVER_OK != 0 && before & status::FAILED == 0 {
            self.go_live();
        }
    }

    /// FEATURES_OK stays unset, which the driver checks, if it asked for what was not offered.
    fn settle_features(&mut self) {
        let modern = self.driver_features & (1 << VIRTIO_F_VERSION_1) != 0;
        if modern && self.driver_features & !self.offered() == 0 && self.status & status::DRIVER != 0 {
            self.status |= status::FEATURES_OK;
        } else {
            self.faults.record();
        }
    }

    fn go_live(&mut self) {
        if self.status & status::FEATURES_OK == 0 {
            return self.faults.record();
        }
        for queue in self.queues.iter_mut().filter(|queue| queue.ring.ready()) {
            if !queue.ring.is_valid(&self.ram) {
                queue.broken = true;
                self.faults.record();
            }
        }
        self.status |= status::DRIVER_OK;
        self.with_device(|device, rings| device.activate(rings));
    }

    fn reset(&mut self) {
        self.device.reset();
        for queue in &mut self.queues {
            queue.reset();
        }
        self.interrupt.acknowledge(u32::MAX);
        self.driver_features = 0;
        self.device_features_select = 0;
        self.driver_features_select = 0;
        self.queue_select = 0;
        self.status = 0;
    }
}

impl<D: VirtioDevice> BusDevice for MmioTransport<D> {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            return self.device.read_config(offset, data);
        }
        match <&mut [u8; 4]>::try_from(&mut *data) {
            Ok(word) => *word = self.read_register(offset).to_le_bytes(),
            // Registers are 32 bits wide; other widths are undefined by the specification.
            Err(_) => data.fill(0),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let Some(offset) = offset.checked_sub(reg::CONFIG) {
            return self.device.write_config(offset, data);
        }
        match <[u8; 4]>::try_from(data) {
            Ok(word) => self.write_register(offset, u32::from_le_bytes(word)),
            Err(_) => self.faults.record(),
        }
    }
}

impl<D: VirtioDevice> VirtioSlot for MmioTransport<D> {
    fn queue_count(&self) -> usize {
        self.queues.len()
    }

    fn queue_event(&self, index: usize) -> Option<&EventFd> {
        self.queue_events.get(index)
    }

    fn process_queue(&mut self, index: usize) {
        // Emptied before the work, so that a notification during the work is not lost.
        if let Some(event) = self.queue_events.get(index) {
            let _ = event.read();
        }
        if self.is_live() && self.queues.get(index).is_some_and(VirtQueue::is_usable) {
            self.with_device(|device, rings| device.process_queue(index, rings));
        }
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.device.event_fd()
    }

    fn process_event(&mut self) {
        if self.is_live() {
            self.with_device(|device, rings| device.on_event(rings));
        } else {
            // A device without a driver watches nothing; if this one does, it would keep the loop spinning.
            self.device.reset();
        }
    }

    fn kick_all(&mut self) {
        if !self.is_live() {
            return;
        }
        self.interrupt.repeat_if_pending();
        for (queue, event) in self.queues.iter().zip(&self.queue_events) {
            if queue.is_usable() {
                ring_event(event);
            }
        }
    }
}

fn is_live(status: u32) -> bool {
    status & (status::DRIVER_OK | status::FAILED) == status::DRIVER_OK
}

fn check_count(expected: usize, found: usize) -> Result<(), DeviceRestoreError> {
    if expected == found { Ok(()) } else { Err(DeviceRestoreError::QueueCount { expected, found }) }
}

fn page_of(features: u64, select: u32) -> u32 {
    let shift = match select {
        0 => 0,
        1 => 32,
        _ => return 0,
    };
    u32::try_from((features >> shift) & u64::from(u32::MAX)).unwrap_or(0)
}

fn ring_event(event: &EventFd) {
    // Fails only when the counter is full, in which case the event is pending anyway.
    let _ = event.write(1);
}
