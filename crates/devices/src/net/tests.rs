use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use proptest::prelude::*;

use super::*;
use crate::testing::{Guest, conformance_suite, feed, hostile_ring, readable, writable};

const RX: usize = 0;
const TX: usize = 1;
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A datagram socket keeps the bounds of messages, as a tap does those of frames.
fn tap() -> (File, UnixDatagram) {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (File::from(OwnedFd::from(ours)), theirs)
}

fn fresh() -> NetResources {
    NetResources { tap: Some(tap().0) }
}

fn boot_with_wire() -> (Guest<Net>, UnixDatagram) {
    let (tap, wire) = tap();
    (Guest::booted(Net::with_mac(MAC, NetResources { tap: Some(tap) }).unwrap()), wire)
}

fn boot() -> Guest<Net> {
    boot_with_wire().0
}

fn frame(len: usize, fill: u8) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.resize(12 + len, fill);
    frame
}

fn nothing_on(wire: &UnixDatagram) -> bool {
    matches!(wire.recv(&mut [0; 9]), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

conformance_suite!(
    Net,
    boot,
    |guest: &mut Guest<Net>| {
        let buffer = guest.buffer_of(&frame(60, 1));
        guest.request(TX, &[buffer]);
    },
    fresh
);

#[test]
fn frames_pass_both_ways_once_the_gate_is_open() {
    let (mut guest, wire) = boot_with_wire();
    guest.transport.device_mut().open_gate().unwrap();
    let whole = guest.buffer_of(&frame(60, 1));
    guest.request(TX, &[whole]);
    let mut seen = [0; 70_000];
    let len = wire.recv(&mut seen).unwrap();
    assert_eq!(seen[..len], frame(60, 1));
    let pieces = [guest.buffer_of(&[0; 12]), guest.buffer_of(&[7; 1000]), guest.buffer_of(&[7; 30_000])];
    guest.request(TX, &pieces);
    let len = wire.recv(&mut seen).unwrap();
    assert_eq!(seen[..len], frame(31_000, 7));

    // Frames that come before there are buffers wait without keeping the loop busy.
    wire.send(&frame(100, 2)).unwrap();
    wire.send(&frame(200, 3)).unwrap();
    guest.settle();
    assert!(!guest.turn());
    let one = guest.alloc(2048);
    let split = [writable(guest.alloc(12), 12), writable(guest.alloc(2048), 2048)];
    assert_eq!(guest.request(RX, &[writable(one, 2048)]), 112);
    assert_eq!(guest.bytes(one, 112), frame(100, 2));
    assert_eq!(guest.request(RX, &split), 212);
    assert_eq!(guest.bytes(split[1].addr, 200), [3; 200]);
    let later = guest.alloc(2048);
    guest.add(RX, &[writable(later, 2048)]).unwrap();
    guest.settle();
    assert!(guest.take_used(RX).is_none());
    wire.send(&frame(10, 4)).unwrap();
    guest.settle();
    assert_eq!(guest.take_used(RX).unwrap().1, 22);
    assert_eq!(guest.faults.count(), 0);
}

#[test]
fn nothing_passes_before_the_gate_is_open() {
    let (mut guest, wire) = boot_with_wire();
    let buffer = guest.buffer_of(&frame(60, 1));
    guest.request(TX, &[buffer]);
    wire.send(&frame(60, 2)).unwrap();
    let place = guest.alloc(2048);
    guest.add(RX, &[writable(place, 2048)]).unwrap();
    guest.settle();
    assert!(guest.take_used(RX).is_none());
    guest.transport.device_mut().open_gate().unwrap();
    guest.settle();
    assert!(guest.take_used(RX).is_none(), "what came too early is dropped, not delayed");
    assert!(nothing_on(&wire));
    assert_eq!(guest.transport.device().dropped(), 2);
    wire.send(&frame(60, 3)).unwrap();
    guest.settle();
    assert_eq!(guest.bytes(place + 12, 60), [3; 60]);
}

#[test]
fn a_restored_device_is_closed_again() {
    let (mut guest, _wire) = boot_with_wire();
    guest.transport.device_mut().open_gate().unwrap();
    let (tap, wire) = tap();
    let mut child = guest.child(guest.transport.save(), NetResources { tap: Some(tap) });
    let buffer = child.buffer_of(&frame(60, 1));
    child.request(TX, &[buffer]);
    assert!(nothing_on(&wire));
    child.transport.device_mut().open_gate().unwrap();
    child.request(TX, &[buffer]);
    assert!(!nothing_on(&wire));
}

#[test]
fn a_device_without_a_tap_leads_nowhere_and_takes_one_after_a_restore() {
    let mut guest = Guest::booted(Net::with_mac(MAC, NetResources { tap: None }).unwrap());
    guest.transport.device_mut().open_gate().unwrap();
    let (buffer, place) = (guest.buffer_of(&frame(60, 1)), guest.alloc(2048));
    guest.add(RX, &[writable(place, 2048)]).unwrap();
    guest.request(TX, &[buffer]);
    guest.settle();
    assert!(guest.take_used(RX).is_none());
    let net = guest.transport.device();
    assert_eq!((net.dropped(), net.is_open(), guest.faults.count()), (1, false, 0));
    let (tap, wire) = tap();
    let mut child = guest.child(guest.transport.save(), NetResources { tap: Some(tap) });
    child.transport.device_mut().open_gate().unwrap();
    child.request(TX, &[buffer]);
    assert!(!nothing_on(&wire));
}

#[test]
fn frames_that_are_none_are_counted() {
    let (mut guest, wire) = boot_with_wire();
    guest.transport.device_mut().open_gate().unwrap();
    let place = guest.alloc(64);
    guest.request(TX, &[readable(place, 11)]);
    guest.request(TX, &[readable(1 << 20, 70_000)]);
    guest.request(TX, &[readable(crate::testing::LOW_END - 8, 60)]);
    wire.send(&frame(60, 1)).unwrap();
    guest.request(RX, &[writable(place, 11)]);
    assert_eq!(guest.faults.count(), 4);
    assert!(nothing_on(&wire));
    assert_eq!(guest.request(RX, &[writable(place, 64)]), 64, "the frame waited for a real buffer");
}

#[test]
fn the_guest_reads_its_address() {
    let mut guest = boot();
    assert_eq!(guest.get(0x100).to_le_bytes(), MAC[..4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_rings_are_survived(ring in hostile_ring(), queue in 0usize..2) {
        let (mut guest, wire) = boot_with_wire();
        guest.transport.device_mut().open_gate().unwrap();
        for _ in 0..4 {
            let _ = wire.send(&frame(1400, 9));
        }
        feed(&mut guest, queue, &ring, &[0; 12]);
    }
}
