//! The transport's lifecycle, with the entropy device behind it.

use std::fs::File;

use proptest::prelude::*;

use super::queue::VirtQueue;
use super::registers::status::{ACKNOWLEDGE, DRIVER, DRIVER_OK, FAILED, FEATURES_OK, NEEDS_RESET};
use super::*;
use crate::bus::BusDevice;
use crate::faults::GuestFaults;
use crate::rng::{Rng as Entropy, RngResources};
use crate::testing::{Guest, LOW_END, Ring, event, new_ram, writable};

const QUEUE_NUM: u64 = 0x38;
const QUEUE_READY: u64 = 0x44;
const STATUS: u64 = 0x70;
const READY: u32 = ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK;

fn fresh() -> Guest<Entropy> {
    Guest::new(Entropy::new(RngResources { source: File::open("/dev/urandom").unwrap() }))
}

fn booted() -> Guest<Entropy> {
    let mut guest = fresh();
    guest.set_up();
    guest
}

fn accept(guest: &mut Guest<Entropy>, low: u32, high: u32) -> u32 {
    guest.set(STATUS, ACKNOWLEDGE);
    guest.set(STATUS, ACKNOWLEDGE | DRIVER);
    for (page, bits) in [(0, low), (1, high)] {
        guest.set(0x24, page);
        guest.set(0x20, bits);
    }
    guest.set(STATUS, ACKNOWLEDGE | DRIVER | FEATURES_OK);
    guest.get(STATUS)
}

#[test]
fn the_registers_introduce_the_device() {
    let mut guest = fresh();
    assert_eq!(guest.get(0).to_le_bytes(), *b"virt");
    assert_eq!((guest.get(4), guest.get(8)), (2, 4));
    assert_eq!(guest.get(0x34), 16);
    guest.set(0x30, 1);
    assert_eq!(guest.get(0x34), 0, "there is no second queue");
    assert_eq!((guest.get(0xb0), guest.get(0xbc)), (u32::MAX, u32::MAX), "nor shared memory");
    guest.set(0x14, 1);
    assert_eq!(guest.get(0x10), 1, "a device of version 1.0");
    guest.set(0x14, 2);
    assert_eq!(guest.get(0x10), 0);
}

#[test]
fn features_that_were_not_offered_are_not_settled() {
    assert_eq!(accept(&mut fresh(), 0, 1), ACKNOWLEDGE | DRIVER | FEATURES_OK);
    assert_eq!(accept(&mut fresh(), 0, 0), ACKNOWLEDGE | DRIVER, "not without version 1");
    assert_eq!(accept(&mut fresh(), 1 << 5, 1), ACKNOWLEDGE | DRIVER);
    let mut guest = fresh();
    accept(&mut guest, 0, 1);
    guest.set(0x20, 0xffff);
    assert_eq!(guest.transport.save().driver_features, 1 << 32, "too late to change them");
    assert_eq!(guest.faults.count(), 1);
}

#[test]
fn queues_are_set_up_only_before_they_are_used() {
    let mut guest = fresh();
    guest.set(QUEUE_READY, 1);
    assert_eq!(guest.get(QUEUE_READY), 0, "features first");
    accept(&mut guest, 0, 1);
    for bad in [0, 3, 32, 0x1_0010] {
        guest.set(QUEUE_NUM, bad);
    }
    assert_eq!(guest.transport.save().queues[0].size, 16);
    assert_eq!(guest.faults.count(), 5);
    let mut guest = booted();
    let before = guest.transport.save().queues;
    guest.set(QUEUE_NUM, 8);
    guest.set(QUEUE_READY, 0);
    guest.set(0x80, 0x5000);
    assert_eq!(guest.transport.save().queues, before);
    assert_eq!(guest.faults.count(), 3);
}

#[test]
fn a_driver_may_not_skip_steps() {
    let mut guest = fresh();
    guest.set(STATUS, READY);
    assert!(!guest.transport.is_live());
    guest.set(STATUS, 0);
    guest.set(STATUS, ACKNOWLEDGE | DRIVER | DRIVER_OK);
    assert!(!guest.transport.is_live());
}

#[test]
fn a_driver_that_gives_up_is_served_no_more_until_it_resets() {
    let mut guest = booted();
    guest.set(STATUS, READY | FAILED);
    let buffer = writable(guest.alloc(16), 16);
    guest.add(0, &[buffer]);
    guest.settle();
    assert!(guest.take_used(0).is_none());
    guest.transport.kick_all();
    guest.settle();
    assert!(guest.take_used(0).is_none());
    guest.set_up();
    assert!(guest.transport.is_live());
}

#[test]
fn a_ring_outside_memory_breaks_only_its_device() {
    let mut guest = fresh();
    guest.rings[0].base = LOW_END - 64;
    guest.set_up();
    assert_eq!(guest.get(STATUS), READY | NEEDS_RESET);
    assert_eq!(guest.get(0x60), 2, "the driver is told");
    assert_eq!(guest.interrupt.read().unwrap(), 1);
    assert_eq!(guest.faults.count(), 1);
}

#[test]
fn a_ring_index_that_jumps_breaks_the_queue_once() {
    let mut guest = booted();
    let avail = guest.rings[0].avail();
    vm_memory::Bytes::write_obj(&guest.ram, 100u16, vm_memory::GuestAddress(avail + 2)).unwrap();
    for _ in 0..3 {
        guest.set(0x50, 0);
        guest.settle();
    }
    assert_eq!(guest.get(STATUS), READY | NEEDS_RESET);
    assert_eq!(guest.faults.count(), 1);
}

#[test]
fn interrupts_stay_until_they_are_acknowledged_and_are_repeated_after_a_restore() {
    let mut guest = booted();
    let buffer = writable(guest.alloc(16), 16);
    guest.request(0, &[buffer]);
    assert_eq!((guest.get(0x60), guest.interrupt.read().unwrap()), (1, 1));
    let source = RngResources { source: File::open("/dev/urandom").unwrap() };
    let mut child = guest.child(guest.transport.save(), source);
    child.transport.kick_all();
    assert_eq!(child.interrupt.read().unwrap(), 1, "the edge may have been lost");
    child.set(0x64, 1);
    assert_eq!(child.get(0x60), 0);
    child.transport.kick_all();
    assert!(child.interrupt.read().is_err());
}

#[test]
fn a_guest_that_wants_no_interrupt_gets_none() {
    let mut guest = booted();
    let buffer = writable(guest.alloc(16), 16);
    // The event index is left where it is, as a polling driver does.
    let event = guest.rings[0].avail() + 4 + 2 * 16;
    vm_memory::Bytes::write_obj(&guest.ram, 7u16, vm_memory::GuestAddress(event)).unwrap();
    guest.add(0, &[buffer]);
    guest.settle();
    assert!(guest.interrupt.read().is_err());
    assert!(guest.take_used(0).is_some());
}

#[test]
fn a_change_of_configuration_is_announced() {
    let mut guest = booted();
    let before = guest.get(0xfc);
    guest.transport.config_changed();
    assert_eq!(guest.get(0xfc), before + 1);
    assert_eq!(guest.get(0x60), 2);
}

#[test]
fn odd_accesses_read_as_zero_and_are_counted_when_written() {
    let mut guest = booted();
    let mut wide = [0xaa; 8];
    guest.transport.read(0, &mut wide);
    assert_eq!(wide, [0; 8]);
    guest.transport.write(STATUS, &[0]);
    assert!(guest.transport.is_live());
    guest.set(0x50, 7);
    assert_eq!(guest.faults.count(), 2, "a byte-wide write, and a queue that is not there");
}

#[test]
fn a_guest_that_refills_without_end_does_not_keep_the_loop() {
    let (ram, mut ring) = (new_ram(), Ring::new(0x1_0000, 16));
    ring.store(&ram, 0, (1 << 20, 16, 2, 0));
    let state = QueueStateV1 {
        max_size: 16,
        size: 16,
        ready: true,
        broken: false,
        event_idx: true,
        next_avail: 0,
        next_used: 0,
        desc_table: ring.base,
        avail_ring: ring.avail(),
        used_ring: ring.used(),
    };
    let mut queue = VirtQueue::restore(state, 0, 16, true, &ram).unwrap();
    let (mut interrupt, faults) = (Interrupt::new(event(), 0), GuestFaults::new());
    let queues = std::slice::from_mut(&mut queue);
    let mut rings = Rings::new(&ram, queues, &mut interrupt, &faults, 0);
    let mut served = 0;
    ring.publish(&ram, 0);
    while let Some(chain) = rings.pop(0) {
        rings.put(0, chain.head(), 0);
        ring.publish(&ram, 0);
        served += 1;
        assert!(served < 100_000);
    }
    assert_eq!(rings.finish(), 1, "another turn is asked for");
    assert_eq!(faults.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_register_access_is_survived(
        accesses in proptest::collection::vec(
            (0u64..0x210, any::<bool>(), prop_oneof![0u32..0x100, any::<u32>()], 1usize..9),
            1..200,
        ),
        set_up_first in any::<bool>(),
    ) {
        let mut guest = fresh();
        if set_up_first {
            guest.set_up();
        }
        for (offset, write, value, width) in accesses {
            let offset = if width == 4 { offset & !3 } else { offset };
            let mut data = [value.to_le_bytes(), value.to_be_bytes()].concat();
            match write {
                true => guest.transport.write(offset, &data[..width]),
                false => guest.transport.read(offset, &mut data[..width]),
            }
        }
        guest.settle();
        guest.set_up();
        guest.transport.kick_all();
        guest.settle();
        prop_assert!(guest.transport.is_live());
    }
}
