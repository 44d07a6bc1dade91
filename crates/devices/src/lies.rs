//! Rings that lie, one kind each: the device breaks or answers with an error, the fault is counted, and a reset makes
//! it good again. What random rings do is tried in [`crate::fuzz`] and beside each device.

use std::fs::File;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use crate::block::{Block, BlockConfig, BlockResources};
use crate::rng::{Rng, RngResources};
use crate::testing::{Guest, LOW_END, Ring, writable};
use crate::virtio::VirtioDevice;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// An address in memory that nobody uses.
const GOOD: u64 = 1 << 20;
/// From there into the memory above the hole.
const ACROSS: u32 = (16 << 20) - (1 << 20) + 16;
const TABLE: u64 = (1 << 20) + 0x1000;

/// What a driver put into the ring: descriptors by index, and into an indirect table.
#[derive(Debug, Clone, Default)]
struct Lie {
    ring: Vec<(u64, u32, u16, u16)>,
    table: Vec<(u64, u32, u16, u16)>,
    head: u16,
    jump: u16,
}

/// Every kind, at `place` in bytes and `long` in length, which are any.
fn lies(place: u16, long: u32) -> Vec<(&'static str, Lie)> {
    let chain = |ring: Vec<_>| Lie { ring, ..Lie::default() };
    let table = |len, table: Vec<_>| Lie { ring: vec![(TABLE, len, INDIRECT, 0)], table, ..Lie::default() };
    let far = long.max(1 << 22);
    vec![
        ("a loop of one", chain(vec![(GOOD, 16, WRITE | NEXT, 0)])),
        ("a loop of two", chain(vec![(GOOD, 16, WRITE | NEXT, 1), (GOOD, 16, WRITE | NEXT, 0)])),
        ("a chain past the end", chain(vec![(GOOD, 16, WRITE | NEXT, 256 + place % 0xfe00)])),
        ("a head past the end", Lie { head: 256 + place % 0xfe00, ..chain(vec![]) }),
        ("a length that overflows", chain(vec![(u64::MAX - u64::from(place), far, WRITE, 0)])),
        ("a buffer in the hole", chain(vec![(LOW_END + u64::from(place), 16, WRITE, 0)])),
        ("a buffer over the end", chain(vec![(LOW_END - 8, 16 + u32::from(place), WRITE, 0)])),
        ("a buffer over the hole", chain(vec![(GOOD, ACROSS, WRITE, 0)])),
        ("a table of half an entry", table(8, vec![(GOOD, 16, WRITE, 0)])),
        ("a table of no entry", table(0, vec![])),
        ("a table in the hole", chain(vec![(LOW_END + u64::from(place) * 16, 16, INDIRECT, 0)])),
        ("a table that overflows", chain(vec![(!0xf, far & !0xf, INDIRECT, 0)])),
        ("a table in a table", table(16, vec![(TABLE, 16, INDIRECT, 0)])),
        (
            "a table that goes on in itself",
            table(32, vec![(GOOD, 16, WRITE | NEXT, 1), (GOOD, 16, WRITE | NEXT, 0)]),
        ),
        ("a table that goes on past its end", table(16, vec![(GOOD, 16, WRITE | NEXT, 1 + place)])),
        (
            "more available than there is",
            Lie { jump: 300 + place % 0x8000, ..chain(vec![(GOOD, 16, WRITE, 0)]) },
        ),
    ]
}

fn tell<D: VirtioDevice>(guest: &mut Guest<D>, lie: &Lie) {
    let ram = guest.ram.clone();
    let ring = &mut guest.rings[0];
    for (index, descriptor) in (0..).zip(&lie.ring) {
        ring.store(&ram, index, *descriptor);
    }
    for (index, descriptor) in (0..).zip(&lie.table) {
        Ring::new(TABLE, 16).store(&ram, index, *descriptor);
    }
    ring.publish(&ram, lie.head);
    if lie.jump != 0 {
        ring.added = ring.added.wrapping_add(lie.jump);
        ram.write_obj(ring.added, GuestAddress(ring.avail() + 2)).unwrap();
    }
    guest.set(0x50, 0);
    guest.settle();
}

/// A driver that begins anew, with rings that are empty.
fn begin_anew<D: VirtioDevice>(guest: &mut Guest<D>) {
    guest.set(0x70, 0);
    for ring in &mut guest.rings {
        let (base, size) = (ring.base, ring.size);
        guest.ram.write_slice(&[0; 0x4000], GuestAddress(base)).unwrap();
        *ring = Ring::new(base, size);
    }
    guest.set_up();
}

fn rng() -> Guest<Rng> {
    Guest::booted(Rng::new(RngResources { source: File::open("/dev/urandom").unwrap() }))
}

fn block() -> Guest<Block> {
    let file = || {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 10).unwrap();
        file
    };
    let resources = BlockResources { base: file(), layers: Vec::new(), top: file() };
    Guest::booted(Block::new(BlockConfig { id: [b'd'; 20] }, resources).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn each_kind_of_lie_is_counted_and_a_reset_makes_good(place in any::<u16>(), long in any::<u32>()) {
        let mut guest = rng();
        for (kind, lie) in lies(place, long) {
            let before = guest.faults.count();
            tell(&mut guest, &lie);
            prop_assert!(guest.faults.count() > before, "{kind} is not counted");
            begin_anew(&mut guest);
            prop_assert_eq!(guest.request(0, &[writable(GOOD, 64)]), 64, "after {}", kind);
        }
    }

    #[test]
    fn a_disk_survives_each_kind_of_lie(place in any::<u16>(), long in any::<u32>()) {
        let mut guest = block();
        for (kind, lie) in lies(place, long) {
            let before = guest.faults.count();
            tell(&mut guest, &lie);
            prop_assert!(guest.faults.count() > before, "{kind} is not counted");
            begin_anew(&mut guest);
            let header = guest.buffer_of(&[0; 16]);
            let (data, status) = (writable(GOOD, 512), writable(GOOD + 0x800, 1));
            guest.ram.write_slice(&[9], GuestAddress(status.addr)).unwrap();
            guest.request(0, &[header, data, status]);
            prop_assert_eq!(guest.bytes(status.addr, 1), [0], "after {}", kind);
        }
    }
}
