//! A guest for tests: a driver that sets a device up through its registers, builds rings in guest memory
//! and keeps the rules of notification, so that a lost one shows as a hang; and the standard suite that
//! every device must pass.

use std::collections::HashMap;

use proptest::prelude::*;
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use crate::GuestRam;
use crate::bus::BusDevice;
use crate::faults::GuestFaults;
use crate::virtio::{MmioResources, MmioTransport, TransportStateV1, VirtioDevice, VirtioSlot};

/// Guest memory ends here; above it lies a hole, and then more memory.
pub(crate) const LOW_END: u64 = 4 << 20;
pub(crate) const HIGH_START: u64 = 16 << 20;
const HIGH_LEN: usize = 1 << 20;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A buffer as a driver describes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub(crate) addr: u64,
    pub(crate) len: u32,
    pub(crate) writable: bool,
}

pub(crate) fn readable(addr: u64, len: u32) -> Buffer {
    Buffer { addr, len, writable: false }
}

pub(crate) fn writable(addr: u64, len: u32) -> Buffer {
    Buffer { addr, len, writable: true }
}

/// The driver's half of one queue.
#[derive(Debug, Clone)]
pub(crate) struct Ring {
    pub(crate) size: u16,
    pub(crate) base: u64,
    pub(crate) added: u16,
    seen: u16,
    free: Vec<u16>,
    chains: HashMap<u16, Vec<u16>>,
    notified_at: u16,
}

impl Ring {
    pub(crate) fn new(base: u64, size: u16) -> Self {
        let free = (0..size).rev().collect();
        Self { size, base, added: 0, seen: 0, free, chains: HashMap::new(), notified_at: 0 }
    }

    pub(crate) fn avail(&self) -> u64 {
        self.base + 16 * u64::from(self.size)
    }

    pub(crate) fn used(&self) -> u64 {
        (self.avail() + 6 + 2 * u64::from(self.size)).next_multiple_of(16)
    }

    pub(crate) fn store(&self, ram: &GuestRam, index: u16, descriptor: (u64, u32, u16, u16)) {
        let (addr, len, flags, next) = descriptor;
        let raw = RawDescriptor::from(Descriptor::new(addr, len, flags, next));
        ram.write_obj(raw, GuestAddress(self.base + 16 * u64::from(index))).unwrap();
    }

    pub(crate) fn publish(&mut self, ram: &GuestRam, head: u16) {
        let slot = self.avail() + 4 + 2 * u64::from(self.added % self.size);
        ram.write_obj(head, GuestAddress(slot)).unwrap();
        self.added = self.added.wrapping_add(1);
        ram.write_obj(self.added, GuestAddress(self.avail() + 2)).unwrap();
    }

    fn add(&mut self, ram: &GuestRam, buffers: &[Buffer]) -> Option<u16> {
        if self.free.len() < buffers.len() {
            return None;
        }
        let indices: Vec<u16> = buffers.iter().map(|_| self.free.pop().unwrap()).collect();
        for (at, buffer) in buffers.iter().enumerate() {
            let next = indices.get(at + 1).copied();
            let flags = if buffer.writable { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 };
            self.store(ram, indices[at], (buffer.addr, buffer.len, flags, next.unwrap_or(0)));
        }
        let head = indices[0];
        self.chains.insert(head, indices);
        self.publish(ram, head);
        Some(head)
    }

    /// Whether the device asked to hear of what was added since the last call (event index rule).
    fn wants_kick(&mut self, ram: &GuestRam) -> bool {
        let event: u16 = ram.read_obj(GuestAddress(self.used() + 4 + 8 * u64::from(self.size))).unwrap();
        let (old, new) = (self.notified_at, self.added);
        self.notified_at = new;
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
    }

    fn take_used(&mut self, ram: &GuestRam) -> Option<(u16, u32)> {
        let index: u16 = ram.read_obj(GuestAddress(self.used() + 2)).unwrap();
        if index == self.seen {
            return None;
        }
        let entry = self.used() + 4 + 8 * u64::from(self.seen % self.size);
        let head: u32 = ram.read_obj(GuestAddress(entry)).unwrap();
        let len: u32 = ram.read_obj(GuestAddress(entry + 4)).unwrap();
        self.seen = self.seen.wrapping_add(1);
        // Ask to be interrupted at the very next one.
        ram.write_obj(self.seen, GuestAddress(self.avail() + 4 + 2 * u64::from(self.size))).unwrap();
        let head = u16::try_from(head).unwrap();
        let freed = self.chains.remove(&head).expect("a chain is given back exactly once");
        self.free.extend(freed);
        Some((head, len))
    }
}

/// A machine with one device and its driver.
pub(crate) struct Guest<D: VirtioDevice> {
    pub(crate) ram: GuestRam,
    pub(crate) transport: MmioTransport<D>,
    pub(crate) interrupt: EventFd,
    pub(crate) faults: GuestFaults,
    pub(crate) rings: Vec<Ring>,
    next_free: u64,
}

pub(crate) fn event() -> EventFd {
    EventFd::new(EFD_NONBLOCK).unwrap()
}

pub(crate) fn new_ram() -> GuestRam {
    let low = (GuestAddress(0), usize::try_from(LOW_END).unwrap());
    GuestRam::from_ranges(&[low, (GuestAddress(HIGH_START), HIGH_LEN)]).unwrap()
}

/// A copy of guest memory, as a child has it.
pub(crate) fn copy_ram(of: &GuestRam) -> GuestRam {
    let copy = new_ram();
    for (start, len) in [(0, usize::try_from(LOW_END).unwrap()), (HIGH_START, HIGH_LEN)] {
        let mut bytes = vec![0; len];
        of.read_slice(&mut bytes, GuestAddress(start)).unwrap();
        copy.write_slice(&bytes, GuestAddress(start)).unwrap();
    }
    copy
}

pub(crate) fn resources<D: VirtioDevice>(ram: &GuestRam) -> (MmioResources, EventFd, GuestFaults) {
    let (interrupt, faults) = (event(), GuestFaults::new());
    let resources = MmioResources {
        ram: ram.clone(),
        interrupt: interrupt.try_clone().unwrap(),
        queue_events: D::QUEUE_SIZES.iter().map(|_| event()).collect(),
        faults: faults.clone(),
    };
    (resources, interrupt, faults)
}

impl<D: VirtioDevice> Guest<D> {
    /// A machine whose driver has not touched the device yet.
    pub(crate) fn new(device: D) -> Self {
        let ram = new_ram();
        let (resources, interrupt, faults) = resources::<D>(&ram);
        let transport = MmioTransport::new(device, resources).unwrap();
        let bases = (1u64..).map(|slot| slot * 0x1_0000);
        let rings = bases.zip(D::QUEUE_SIZES).map(|(base, size)| Ring::new(base, *size)).collect();
        Self { ram, transport, interrupt, faults, rings, next_free: 1 << 20 }
    }

    /// A machine whose driver is ready.
    pub(crate) fn booted(device: D) -> Self {
        let mut guest = Self::new(device);
        guest.set_up();
        guest
    }

    /// The machine that a restore of `state` makes of a copy of this one's memory.
    pub(crate) fn child(&self, state: TransportStateV1<D::State>, device: D::Resources) -> Self {
        let ram = copy_ram(&self.ram);
        let (resources, interrupt, faults) = resources::<D>(&ram);
        let transport = MmioTransport::restore(state, device, resources).unwrap();
        Self { ram, transport, interrupt, faults, rings: self.rings.clone(), next_free: self.next_free }
    }

    pub(crate) fn get(&mut self, offset: u64) -> u32 {
        let mut word = [0; 4];
        self.transport.read(offset, &mut word);
        u32::from_le_bytes(word)
    }

    pub(crate) fn set(&mut self, offset: u64, value: u32) {
        self.transport.write(offset, &value.to_le_bytes());
    }

    /// What a driver does from reset to DRIVER_OK, accepting every feature.
    pub(crate) fn set_up(&mut self) {
        self.set(0x70, 0);
        self.set(0x70, 1);
        self.set(0x70, 3);
        for page in 0..2 {
            self.set(0x14, page);
            let offered = self.get(0x10);
            self.set(0x24, page);
            self.set(0x20, offered);
        }
        self.set(0x70, 0xb);
        assert_eq!(self.get(0x70), 0xb, "the device took its own features");
        for index in 0..self.rings.len() {
            self.set_up_queue(index);
        }
        self.set(0x70, 0xf);
    }

    pub(crate) fn set_up_queue(&mut self, index: usize) {
        let ring = self.rings[index].clone();
        self.set(0x30, u32::try_from(index).unwrap());
        assert_eq!(self.get(0x34), u32::from(ring.size));
        self.set(0x38, u32::from(ring.size));
        for (register, address) in [(0x80, ring.base), (0x90, ring.avail()), (0xa0, ring.used())] {
            self.set(register, u32::try_from(address & 0xffff_ffff).unwrap());
            self.set(register + 4, u32::try_from(address >> 32).unwrap());
        }
        self.set(0x44, 1);
    }

    /// Guest memory nobody else uses.
    pub(crate) fn alloc(&mut self, len: usize) -> u64 {
        let at = self.next_free;
        self.next_free = (at + u64::try_from(len).unwrap()).next_multiple_of(64);
        assert!(self.next_free < LOW_END, "the test uses too much memory");
        at
    }

    /// Allocates a readable buffer with `bytes` in it.
    pub(crate) fn buffer_of(&mut self, bytes: &[u8]) -> Buffer {
        let addr = self.alloc(bytes.len());
        self.ram.write_slice(bytes, GuestAddress(addr)).unwrap();
        readable(addr, u32::try_from(bytes.len()).unwrap())
    }

    pub(crate) fn bytes(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.ram.read_slice(&mut bytes, GuestAddress(addr)).unwrap();
        bytes
    }

    /// Adds a chain and notifies if, and only if, the device wants to hear of it.
    pub(crate) fn add(&mut self, queue: usize, buffers: &[Buffer]) -> Option<u16> {
        let head = self.rings[queue].add(&self.ram, buffers)?;
        self.notify(queue);
        Some(head)
    }

    pub(crate) fn notify(&mut self, queue: usize) {
        if self.rings[queue].wants_kick(&self.ram) {
            self.set(0x50, u32::try_from(queue).unwrap());
        }
    }

    pub(crate) fn take_used(&mut self, queue: usize) -> Option<(u16, u32)> {
        self.rings[queue].take_used(&self.ram)
    }

    /// Runs the event loop until it has nothing left to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.turn() {
                return;
            }
        }
        panic!("the event loop spins");
    }

    /// One turn of the event loop; `false` if nothing was due.
    pub(crate) fn turn(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.transport.queue_count() {
            if self.transport.queue_event(index).unwrap().read().is_ok() {
                self.transport.process_queue(index);
                busy = true;
            }
        }
        if self.transport.event_fd().is_some_and(is_readable) {
            self.transport.process_event();
            busy = true;
        }
        busy
    }

    /// Adds a chain, runs the device and waits for the chain to come back.
    pub(crate) fn request(&mut self, queue: usize, buffers: &[Buffer]) -> u32 {
        let head = self.add(queue, buffers).unwrap();
        self.settle();
        let (used, len) = self.take_used(queue).expect("the request is answered");
        assert_eq!(used, head);
        len
    }
}

pub(crate) fn is_readable(fd: std::os::fd::RawFd) -> bool {
    let epoll = Epoll::new().unwrap();
    epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, 0)).unwrap();
    epoll.wait(0, &mut [EpollEvent::default()]).unwrap() > 0
}

/// What a hostile driver puts into a ring.
#[derive(Debug, Clone)]
pub(crate) struct HostileRing {
    descriptors: Vec<(u64, u32, u16, u16)>,
    heads: Vec<u16>,
    index_jump: u16,
}

/// Descriptors with any flags (so loops and indirect tables occur), addresses in memory, across its end,
/// in the hole and at the end of the address space, and lengths from none to absurd.
pub(crate) fn hostile_ring() -> impl Strategy<Value = HostileRing> {
    let addr = prop_oneof![
        4 => (0u64..64).prop_map(|at| (1 << 20) + at * 0x100),
        1 => (0u64..3).prop_map(|at| 0x1_0000 * (at + 1)),
        1 => Just(LOW_END - 8),
        1 => Just(LOW_END + 0x100),
        1 => Just(HIGH_START),
        1 => Just(u64::MAX - 4),
    ];
    let len = prop_oneof![
        4 => (0u32..9).prop_map(|n| n * 16),
        2 => Just(44u32), 2 => Just(512u32), 1 => Just(513u32), 1 => Just(4096u32),
        1 => Just(1 << 20), 1 => Just(u32::MAX),
    ];
    let descriptor = (addr, len, 0u16..8, 0u16..20);
    let jump = prop_oneof![8 => Just(0u16), 1 => any::<u16>()];
    (proptest::collection::vec(descriptor, 16), proptest::collection::vec(0u16..40, 1..8), jump)
        .prop_map(|(descriptors, heads, index_jump)| HostileRing { descriptors, heads, index_jump })
}

/// Feeds a ring to a device; returning at all is the test. `fill` is put where the buffers are.
pub(crate) fn feed<D: VirtioDevice>(guest: &mut Guest<D>, queue: usize, ring: &HostileRing, fill: &[u8]) {
    for at in 0..64u64 {
        guest.ram.write_slice(fill, GuestAddress((1 << 20) + at * 0x100)).unwrap();
    }
    // The first of the places where buffers lie doubles as an indirect table.
    let table = Ring::new(1 << 20, 16);
    for (index, descriptor) in (0u16..).zip(&ring.descriptors) {
        guest.rings[queue].store(&guest.ram, index, *descriptor);
        if index >= 8 {
            table.store(&guest.ram, index, *descriptor);
        }
    }
    for head in &ring.heads {
        let size = guest.rings[queue].size;
        guest.rings[queue].publish(&guest.ram, *head % (size + 2));
    }
    if ring.index_jump != 0 {
        let added = guest.rings[queue].added.wrapping_add(ring.index_jump);
        guest.rings[queue].added = added;
        guest.ram.write_obj(added, GuestAddress(guest.rings[queue].avail() + 2)).unwrap();
    }
    guest.set(0x50, u32::try_from(queue).unwrap());
    guest.settle();
}

/// Stamps the standard suite onto a device. `$make` boots a guest, `$change` modifies the device through
/// its interface, `$resources` are those of a restore.
macro_rules! conformance_suite {
    ($device:ty, $make:expr, $change:expr, $resources:expr) => {
        mod conformance {
            use super::*;
            use crate::testing::{Guest, LOW_END, resources};
            use crate::virtio::{MmioTransport, TransportStateV1, VirtioDevice, VirtioSlot};

            type State = TransportStateV1<<$device as VirtioDevice>::State>;

            fn used() -> Guest<$device> {
                let mut guest = $make();
                $change(&mut guest);
                guest
            }

            #[test]
            fn state_differs_after_use() {
                let mut guest = $make();
                let before = guest.transport.save();
                $change(&mut guest);
                assert_ne!(guest.transport.save(), before);
                assert_eq!(guest.faults.count(), 0);
            }

            #[test]
            fn restoring_and_saving_again_changes_nothing() {
                let saved = used().transport.save();
                let child = used().child(saved.clone(), $resources());
                assert_eq!(child.transport.save(), saved);
            }

            #[test]
            fn state_survives_its_serialised_form() {
                let saved = used().transport.save();
                let bytes = postcard::to_stdvec(&saved).unwrap();
                assert_eq!(postcard::from_bytes::<State>(&bytes).unwrap(), saved);
            }

            #[test]
            fn foreign_and_damaged_state_is_refused() {
                let guest = used();
                let damages: [fn(&mut State); 7] = [
                    |state| state.device_id += 1,
                    |state| state.driver_features |= 1 << 40,
                    |state| state.queues.clear(),
                    |state| state.queues[0].max_size = 3,
                    |state| state.queues[0].size = 0,
                    |state| state.queues[0].used_ring = LOW_END - 16,
                    |state| state.queues[0].desc_table = u64::MAX & !0xf,
                ];
                for (index, damage) in damages.iter().enumerate() {
                    let mut state = guest.transport.save();
                    damage(&mut state);
                    let (mmio, _, _) = resources::<$device>(&guest.ram);
                    let restored = MmioTransport::<$device>::restore(state, $resources(), mmio);
                    assert!(restored.is_err(), "damage {index}");
                }
            }

            #[test]
            fn kicking_twice_is_kicking_once() {
                let guest = used();
                let mut child = guest.child(guest.transport.save(), $resources());
                child.transport.kick_all();
                child.settle();
                let once = child.transport.save();
                child.transport.kick_all();
                child.settle();
                assert_eq!(child.transport.save(), once);
                assert_eq!(child.faults.count(), 0);
            }

            #[test]
            fn a_reset_device_can_be_set_up_again() {
                let mut guest = used();
                guest.set(0x70, 0);
                assert_eq!(guest.get(0x70), 0);
                assert!(!guest.transport.is_live());
                guest.set_up();
                assert!(guest.transport.is_live());
            }
        }
    };
}
pub(crate) use conformance_suite;
