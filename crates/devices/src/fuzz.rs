//! Guests that do anything at all: sequences of accesses, rings and buffers that no driver would make, with something
//! going on outside meanwhile. Coming back is the first test; the second is that what is left can be saved and
//! restored, and that a reset makes the device usable again.
//!
//! Each target runs for a moment in `cargo test`; `make fuzz SECONDS=60` gives them longer. A failure shows the shortest
//! sequence that was found to repeat it.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::sync::{Arc, Mutex};

use forkd_testkit::fuzz::fuzz;
use proptest::collection::vec;
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use crate::block::{Block, BlockConfig, BlockResources, DiskLayer};
use crate::bus::{Bus, BusDevice};
use crate::console::ConsoleLog;
use crate::i8042::{I8042, I8042_BASE, I8042_LEN};
use crate::net::{Net, NetResources};
use crate::rng::{Rng, RngResources};
use crate::serial::{SERIAL_LEN, SerialPort};
use crate::testing::{Guest, HIGH_START, LOW_END, Ring, event, new_ram, resources};
use crate::virtio::mmio::MMIO_LEN;
use crate::virtio::{MmioTransport, VirtioDevice};
use crate::vsock::{Vsock, VsockResources};

/// Most acts of one guest.
const MOST: usize = 120;
/// Where buffers lie that are filled, and indirect tables.
const ROOM: u64 = 1 << 20;

/// One thing that a guest, or the outside, does.
#[derive(Debug, Clone)]
enum Act {
    /// Sets a register, as drivers do.
    Set {
        register: u64,
        value: u32,
    },
    /// A write of any length to anywhere in the device's window.
    Write {
        offset: u64,
        bytes: Vec<u8>,
    },
    Read {
        offset: u64,
        len: usize,
    },
    /// Writes a descriptor into a ring, or into an indirect table.
    Describe {
        queue: usize,
        index: u16,
        descriptor: (u64, u32, u16, u16),
        indirect: bool,
    },
    /// Makes a chain available that begins at this descriptor.
    Publish {
        queue: usize,
        head: u16,
    },
    /// Describes a chain as a driver would, makes it available and notifies.
    Ask {
        queue: usize,
        parts: Vec<(u64, u32, bool)>,
    },
    /// Claims that many more are available.
    Jump {
        queue: usize,
        by: u16,
    },
    /// Puts bytes where buffers are: headers of requests and packets.
    Fill {
        slot: u64,
        bytes: Vec<u8>,
    },
    /// Overwrites a ring.
    Scribble {
        queue: usize,
        offset: u64,
        value: u64,
    },
    Notify {
        queue: u32,
    },
    Turn,
    Reset,
    SetUp,
    /// Something comes from the host's side.
    Outside {
        bytes: Vec<u8>,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let queue = || 0usize..3;
    let few = || vec(any::<u8>(), 0..9);
    let descriptor = (address(), length(), 0u16..8, 0u16..20);
    prop_oneof![
        2 => (0u64..64, word()).prop_map(|(at, value)| Act::Set { register: at * 4, value }),
        1 => (0u64..0x300, few()).prop_map(|(offset, bytes)| Act::Write { offset, bytes }),
        1 => (0u64..0x300, 0usize..17).prop_map(|(offset, len)| Act::Read { offset, len }),
        2 => (queue(), 0u16..20, descriptor, any::<bool>()).prop_map(|(queue, index, descriptor, indirect)| {
            Act::Describe { queue, index, descriptor, indirect }
        }),
        1 => (queue(), 0u16..300).prop_map(|(queue, head)| Act::Publish { queue, head }),
        24 => (queue(), vec((slot(), small(), any::<bool>()), 1..4))
            .prop_map(|(queue, parts)| Act::Ask { queue, parts }),
        1 => (queue(), any::<u16>()).prop_map(|(queue, by)| Act::Jump { queue, by }),
        16 => (0u64..8, header()).prop_map(|(slot, bytes)| Act::Fill { slot, bytes }),
        1 => (queue(), 0u64..0x2000, any::<u64>())
            .prop_map(|(queue, offset, value)| Act::Scribble { queue, offset, value }),
        2 => (0u32..4).prop_map(|queue| Act::Notify { queue }),
        8 => Just(Act::Turn),
        1 => Just(Act::Reset),
        4 => Just(Act::SetUp),
        6 => vec(any::<u8>(), 0..64).prop_map(|bytes| Act::Outside { bytes }),
    ]
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    vec(act(), 0..MOST)
}

fn word() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..32, any::<u32>()]
}

fn slot() -> impl Strategy<Value = u64> {
    (0u64..8).prop_map(|slot| ROOM + slot * 0x200)
}

/// In memory, over its end, in the hole, in a ring, at the end of the address space.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => slot(),
        1 => (0u64..64).prop_map(|before| LOW_END - before),
        1 => (0u64..0x1_0000).prop_map(|offset| LOW_END + offset),
        1 => (0u64..0x1_0000).prop_map(|offset| HIGH_START + offset),
        1 => (1u64..4, 0u64..0x1000).prop_map(|(queue, offset)| 0x1_0000 * queue + offset),
        1 => (0u64..64).prop_map(|before| u64::MAX - before),
        1 => any::<u64>(),
    ]
}

/// Headers of block requests, vsock packets and frames, whole sectors, status bytes.
fn small() -> impl Strategy<Value = u32> {
    prop_oneof![Just(16u32), Just(44), Just(512), Just(1), Just(12), 0u32..1024]
}

fn length() -> impl Strategy<Value = u32> {
    prop_oneof![4 => small(), 2 => (0u32..9).prop_map(|entries| entries * 16), 1 => any::<u32>()]
}

/// What a device takes for a header: noise, a block request, a vsock packet of a guest.
fn header() -> impl Strategy<Value = Vec<u8>> {
    let request = (0u32..16, prop_oneof![0u64..256, any::<u64>()])
        .prop_map(|(kind, sector)| [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
    let ports = (prop_oneof![Just(52u32), 0u32..4, any::<u32>()], prop_oneof![1024u32..1040, any::<u32>()]);
    let packet = (ports, word(), 0u16..8, 0u32..4, (word(), word())).prop_map(
        |((ours, theirs), len, op, flags, (room, taken))| {
            let cids = [3u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
            let words = [ours, theirs, len, 1 | u32::from(op) << 16, flags, room, taken];
            [cids, words.into_iter().flat_map(u32::to_le_bytes).collect()].concat()
        },
    );
    prop_oneof![vec(any::<u8>(), 0..64), request, packet]
}

/// Has the guest do all of it, and looks at what is left.
fn play<D: VirtioDevice>(
    mut guest: Guest<D>,
    acts: &[Act],
    again: impl FnOnce(&D) -> D::Resources,
    mut outside: impl FnMut(&[u8]),
) {
    guest.set_up();
    for act in acts {
        perform(&mut guest, act, &mut outside);
    }
    guest.settle();
    let (mmio, _, _) = resources::<D>(&guest.ram);
    let restored = MmioTransport::<D>::restore(guest.transport.save(), again(guest.transport.device()), mmio);
    assert!(restored.is_ok(), "what it is now cannot be restored: {:?}", restored.err());
    set_up(&mut guest);
    assert!(guest.transport.is_live());
}

fn perform<D: VirtioDevice>(guest: &mut Guest<D>, act: &Act, outside: &mut impl FnMut(&[u8])) {
    let queue = |number: &usize| number % D::QUEUE_SIZES.len();
    match act {
        Act::Set { register, value } => guest.set(*register, *value),
        Act::Write { offset, bytes } => guest.transport.write(*offset, bytes),
        Act::Read { offset, len } => guest.transport.read(*offset, &mut [0; 16][..*len]),
        Act::Describe { queue: number, index, descriptor, indirect } => {
            let table = Ring::new(ROOM, 16);
            let ring = if *indirect { &table } else { &guest.rings[queue(number)] };
            ring.store(&guest.ram, index % ring.size, *descriptor);
        }
        Act::Publish { queue: number, head } => {
            let ring = &mut guest.rings[queue(number)];
            let head = head % (ring.size + 2);
            ring.publish(&guest.ram, head);
        }
        Act::Ask { queue: number, parts } => ask(guest, queue(number), parts),
        Act::Jump { queue: number, by } => {
            let ring = &mut guest.rings[queue(number)];
            ring.added = ring.added.wrapping_add(*by);
            guest.ram.write_obj(ring.added, GuestAddress(ring.avail() + 2)).unwrap();
        }
        Act::Fill { slot, bytes } => {
            guest.ram.write_slice(bytes, GuestAddress(ROOM + slot * 0x200)).unwrap();
        }
        Act::Scribble { queue: number, offset, value } => {
            let at = guest.rings[queue(number)].base + offset;
            guest.ram.write_obj(*value, GuestAddress(at)).unwrap();
        }
        Act::Notify { queue } => guest.set(0x50, *queue),
        Act::Turn => drop(guest.turn()),
        Act::Reset => guest.set(0x70, 0),
        Act::SetUp => set_up(guest),
        Act::Outside { bytes } => outside(bytes),
    }
}

/// A chain of descriptors one after the other, readable ones first.
fn ask<D: VirtioDevice>(guest: &mut Guest<D>, queue: usize, parts: &[(u64, u32, bool)]) {
    let mut parts = parts.to_vec();
    parts.sort_by_key(|(_, _, writable)| *writable);
    let ring = &mut guest.rings[queue];
    let first = ring.added.wrapping_mul(4) % ring.size;
    for (index, (at, len, writable)) in (0u16..).zip(&parts) {
        let (this, next) = ((first + index) % ring.size, (first + index + 1) % ring.size);
        let goes_on = usize::from(index) + 1 < parts.len();
        let flags = if *writable { 2 } else { 0 } | u16::from(goes_on);
        ring.store(&guest.ram, this, (*at, *len, flags, next));
    }
    ring.publish(&guest.ram, first);
    guest.set(0x50, u32::try_from(queue).unwrap());
}

/// A driver that begins anew, with rings that are empty.
fn set_up<D: VirtioDevice>(guest: &mut Guest<D>) {
    guest.set(0x70, 0);
    for ring in &mut guest.rings {
        let (base, size) = (ring.base, ring.size);
        guest.ram.write_slice(&[0; 0x3000], GuestAddress(base)).unwrap();
        *ring = Ring::new(base, size);
    }
    guest.set_up();
}

fn file(bytes: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn fuzz_block() {
    fuzz(&acts(), |acts| {
        let (base, top) = (file(64 << 10), file(64 << 10));
        let (same_base, written) = (base.try_clone().unwrap(), top.try_clone().unwrap());
        let config = BlockConfig { id: [b'd'; 20] };
        let disk = Block::new(config, BlockResources { base, layers: Vec::new(), top }).unwrap();
        // What a guest wrote is a layer of whatever is restored of it.
        let again = |disk: &Block| {
            let layer = DiskLayer { data: written, extents: disk.disk().top_extents() };
            BlockResources { base: same_base, layers: vec![layer], top: file(64 << 10) }
        };
        play(Guest::new(disk), acts, again, |_| {});
    });
}

#[test]
fn fuzz_net() {
    let wire = || {
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        theirs.set_nonblocking(true).unwrap();
        (NetResources { tap: Some(File::from(OwnedFd::from(ours))) }, theirs)
    };
    fuzz(&(any::<bool>(), acts()), |(open, acts)| {
        let (tap, outside) = wire();
        let mut guest = Guest::new(Net::with_mac([2, 0, 0, 0, 0, 1], tap).unwrap());
        if *open {
            guest.transport.device_mut().open_gate().unwrap();
        }
        let again = |_: &Net| wire().0;
        play(guest, acts, again, |frame| {
            let _ = outside.send(&[&[0; 12], frame].concat());
            let _ = outside.recv(&mut [0; 4096]);
        });
    });
}

#[test]
fn fuzz_vsock() {
    let listening = |folder: &tempfile::TempDir, name| UnixListener::bind(folder.path().join(name)).unwrap();
    fuzz(&acts(), |acts| {
        let folder = tempfile::tempdir().unwrap();
        let listener = listening(&folder, "a");
        let guest = Guest::new(Vsock::new(3, VsockResources { listener }).unwrap());
        let again = |_: &Vsock| VsockResources { listener: listening(&folder, "b") };
        let mut clients = Vec::new();
        play(guest, acts, again, |bytes| {
            // Every other one says what a host's client says; what it sends then is the guest's affair.
            let mut client = UnixStream::connect(folder.path().join("a")).unwrap();
            if clients.len() % 2 == 0 {
                let _ = client.write_all(b"CONNECT 52\n");
            }
            let _ = client.write_all(bytes);
            clients.push(client);
            if clients.len() > 8 {
                clients.remove(0);
            }
        });
    });
}

#[test]
fn fuzz_rng() {
    let source = || RngResources { source: File::open("/dev/urandom").unwrap() };
    fuzz(&acts(), |acts| play(Guest::new(Rng::new(source())), acts, |_| source(), |_| {}));
}

/// An access of a guest to what ACPI tells it of: most of them near a device, on either side of its bounds.
fn access() -> impl Strategy<Value = (bool, u64, Vec<u8>, bool)> {
    let port = (any::<bool>(), 0u64..16, 0u64..0x1_0000)
        .prop_map(|(near, at, any)| if near { SERIAL - 4 + at } else { any });
    let address = prop_oneof![
        port.prop_map(|at| (true, at)),
        (0u64..0x500).prop_map(|at| (false, WINDOW - 8 + at)),
        any::<u64>().prop_map(|at| (false, at)),
    ];
    (address, vec(any::<u8>(), 0..9), any::<bool>())
        .prop_map(|((port, at), bytes, write)| (port, at, bytes, write))
}

const WINDOW: u64 = 0xd000_0000;
const SERIAL: u64 = 0x3f8;

#[test]
fn fuzz_buses() {
    fuzz(&vec(access(), 0..MOST), |accesses| {
        let (mut ports, mut memory) = (Bus::new(), Bus::new());
        let serial = Arc::new(Mutex::new(SerialPort::new(event(), ConsoleLog::sink())));
        ports.insert(SERIAL, SERIAL_LEN, serial).unwrap();
        ports.insert(I8042_BASE, I8042_LEN, Arc::new(Mutex::new(I8042::new(event())))).unwrap();
        for slot in 0..2 {
            let (mmio, _, _) = resources::<Rng>(&new_ram());
            let device = Rng::new(RngResources { source: File::open("/dev/urandom").unwrap() });
            let transport = Arc::new(Mutex::new(MmioTransport::new(device, mmio).unwrap()));
            memory.insert(WINDOW + slot * MMIO_LEN, MMIO_LEN, transport).unwrap();
        }
        for (port, at, bytes, write) in accesses {
            let (bus, mut bytes) = (if *port { &ports } else { &memory }, bytes.clone());
            if *write {
                bus.write(*at, &bytes)
            } else {
                bus.read(*at, &mut bytes)
            };
        }
    });
}
