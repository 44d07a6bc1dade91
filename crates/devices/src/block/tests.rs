use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use forkd_memory::extents::Extent;
use proptest::prelude::*;

use super::*;
use crate::testing::{Guest, conformance_suite, feed, hostile_ring, readable, writable};
use crate::virtio::VirtioSlot;

const BYTES: u64 = 64 * BLOCK_SIZE;

const IN: u32 = 0;
const OUT: u32 = 1;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

fn base_bytes() -> Vec<u8> {
    (0..BYTES).map(|at| u8::try_from((at / 512 * 7 + at) % 251).unwrap()).collect()
}

fn base() -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&base_bytes()).unwrap();
    file
}

fn top() -> File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES).unwrap();
    file
}

fn layer(blocks: &[u64], fill: u8) -> DiskLayer {
    let data = top();
    let mut extents = forkd_memory::extents::ExtentsBuilder::default();
    for block in blocks {
        data.write_all_at(&[fill; 4096], block * BLOCK_SIZE).unwrap();
        extents.push(*block);
    }
    DiskLayer { data, extents: extents.finish() }
}

fn boot() -> Guest<Block> {
    let resources = BlockResources { base: base(), layers: Vec::new(), top: top() };
    Guest::booted(Block::new(BlockConfig { id: *b"disk-0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" }, resources).unwrap())
}

/// Sends a request and gives back status, and the data area.
fn send(guest: &mut Guest<Block>, kind: u32, sector: u64, data: &[u8], data_in: usize) -> (u8, Vec<u8>) {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[8..].copy_from_slice(&sector.to_le_bytes());
    let mut chain = vec![guest.buffer_of(&header)];
    if !data.is_empty() {
        // Uneven pieces: buffers need not be sectors.
        let (a, b) = data.split_at(data.len() / 3);
        chain.extend([a, b].into_iter().filter(|part| !part.is_empty()).map(|part| guest.buffer_of(part)));
    }
    let reply = guest.alloc(data_in + 1);
    if data_in > 0 {
        chain.push(writable(reply, u32::try_from(data_in).unwrap()));
    }
    chain.push(writable(reply + u64::try_from(data_in).unwrap(), 1));
    let written = guest.request(0, &chain);
    let mut bytes = guest.bytes(reply, data_in + 1);
    let status = bytes.pop().unwrap();
    if status == 0 {
        assert_eq!(written as usize, if kind == IN { data_in + 1 } else { written as usize });
    }
    (status, bytes)
}

fn zero_range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

conformance_suite!(
    Block,
    boot,
    |guest: &mut Guest<Block>| assert_eq!(send(guest, OUT, 3, &[9; 512], 0).0, 0),
    || BlockResources { base: base(), layers: vec![layer(&[0], 9)], top: top() }
);

#[test]
fn reads_see_base_layers_and_own_writes() {
    let layers = vec![layer(&[1, 2, 5], 0x11), layer(&[2, 3], 0x22)];
    let device = Block::new(BlockConfig::default(), BlockResources { base: base(), layers, top: top() });
    let mut guest = Guest::booted(device.unwrap());
    assert_eq!(send(&mut guest, OUT, 8 * 3 + 1, &[0x33; 512], 0).0, 0);
    let (status, seen) = send(&mut guest, IN, 0, &[], 8 * 4096);
    assert_eq!(status, 0);
    let mut expected = base_bytes()[..8 * 4096].to_vec();
    for (block, fill) in [(1, 0x11), (2, 0x22), (3, 0x22), (5, 0x11)] {
        expected[block * 4096..(block + 1) * 4096].fill(fill);
    }
    expected[3 * 4096 + 512..3 * 4096 + 1024].fill(0x33);
    assert!(seen == expected);
    assert_eq!(guest.faults.count(), 0);
}

#[test]
fn the_base_is_never_written_and_may_be_shorter_than_the_disk() {
    let base = base();
    base.set_len(5000).unwrap();
    let (before, shared) = (base.metadata().unwrap().mtime_nsec(), base.try_clone().unwrap());
    let mut disk = Disk::new(base, Vec::new(), top(), BYTES).unwrap();
    disk.write(100..300, |_, piece| {
        piece.fill(1);
        Ok(())
    })
    .unwrap();
    let mut seen = Vec::new();
    disk.read(0..8192, |_, piece| {
        seen.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    let mut expected = base_bytes()[..5000].to_vec();
    expected.resize(8192, 0);
    expected[100..300].fill(1);
    assert!(seen == expected);
    assert_eq!(shared.metadata().unwrap().mtime_nsec(), before);
}

#[test]
fn small_requests_know_their_answers() {
    let mut guest = boot();
    let (status, id) = send(&mut guest, GET_ID, 0, &[], 20);
    assert_eq!((status, &id[..6]), (0, &b"disk-0"[..]));
    assert_eq!(send(&mut guest, 4, 0, &[], 0).0, 0, "flush");
    assert_eq!(send(&mut guest, 99, 0, &[], 512).0, 2, "unknown");
    assert_eq!(send(&mut guest, DISCARD, 0, &zero_range(0, 8, 1), 0).0, 2, "unknown flag");
    assert_eq!(guest.faults.count(), 0);
    for (name, kind, sector, data, data_in) in [
        ("read past the end", IN, BYTES / 512, vec![], 512),
        ("read across the end", IN, BYTES / 512 - 1, vec![], 1024),
        ("sector overflow", IN, u64::MAX, vec![], 512),
        ("part of a sector", IN, 0, vec![], 100),
        ("write past the end", OUT, BYTES / 512, vec![0; 512], 0),
        ("range past the end", DISCARD, 0, zero_range(BYTES / 512, 1, 0), 0),
        ("range overflow", WRITE_ZEROES, 0, zero_range(u64::MAX, 1, 0), 0),
        ("part of a range", DISCARD, 0, vec![0; 15], 0),
        ("no range", DISCARD, 0, vec![], 0),
        ("too many ranges", DISCARD, 0, zero_range(0, 1, 0).repeat(17), 0),
    ] {
        let before = guest.faults.count();
        assert_eq!(send(&mut guest, kind, sector, &data, data_in).0, 1, "{name}");
        assert_eq!(guest.faults.count(), before + 1, "{name}");
    }
    assert!(guest.transport.is_live());
}

#[test]
fn the_configuration_space_tells_the_size() {
    let mut guest = boot();
    assert_eq!(u64::from(guest.get(0x100)), BYTES / 512);
    assert_eq!(guest.get(0x108), 256 * 1024);
    assert_eq!(guest.get(0x10c), 126);
    assert_eq!(guest.get(0x114), 512);
}

#[test]
fn a_chain_without_room_for_a_status_is_counted_and_given_back() {
    let mut guest = boot();
    let header = guest.buffer_of(&[0; 16]);
    assert_eq!(guest.request(0, &[header]), 0);
    assert_eq!(guest.faults.count(), 1);
    let outside = readable(crate::testing::LOW_END, 16);
    let status = writable(guest.alloc(1), 1);
    guest.request(0, &[outside, status]);
    assert_eq!(guest.faults.count(), 2);
    let (status, _) = send(&mut guest, IN, 0, &[], 512);
    assert_eq!(status, 0, "the queue still works");
}

#[test]
fn a_request_pending_at_the_save_is_served_once_after_the_restore() {
    let mut guest = boot();
    let mut header = [0; 16];
    header[..4].copy_from_slice(&OUT.to_le_bytes());
    let chain = [guest.buffer_of(&header), guest.buffer_of(&[0x77; 512]), writable(guest.alloc(1), 1)];
    // The guest adds a request and notifies, but the event loop has stopped already.
    let head = guest.add(0, &chain).unwrap();
    let resources = BlockResources { base: base(), layers: Vec::new(), top: top() };
    let mut child = guest.child(guest.transport.save(), resources);
    child.settle();
    assert!(child.take_used(0).is_none(), "nobody told the child yet");
    child.transport.kick_all();
    child.settle();
    assert_eq!(child.take_used(0), Some((head, 1)));
    assert_eq!(child.interrupt.read().unwrap(), 1);
    child.transport.kick_all();
    child.settle();
    assert!(child.take_used(0).is_none());
    guest.settle();
    assert_eq!(guest.take_used(0), Some((head, 1)), "the source serves its own");
}

#[test]
fn a_chain_of_layers_that_lost_the_top_is_refused() {
    let mut guest = boot();
    send(&mut guest, OUT, 0, &[1; 8192], 0);
    let state = guest.transport.save().device;
    let lacking = BlockResources { base: base(), layers: vec![layer(&[0], 1)], top: top() };
    assert!(state::restore(state.clone(), lacking).is_err());
    let whole = BlockResources { base: base(), layers: vec![layer(&[0, 1], 1)], top: top() };
    assert!(state::restore(state.clone(), whole).is_ok());
    let absurd = BlockStateV1 { bytes: u64::MAX - 511, ..state };
    let whole = BlockResources { base: base(), layers: vec![layer(&[0, 1], 1)], top: top() };
    assert!(state::restore(absurd, whole).is_err());
}

#[test]
fn impossible_layers_are_refused() {
    let extent = |first_page, pages| Extent { first_page, pages };
    for extents in [
        vec![extent(0, 0)],
        vec![extent(63, 2)],
        vec![extent(4, 2), extent(5, 1)],
        vec![extent(9, 1), extent(2, 1)],
        vec![extent(u64::MAX, 2)],
    ] {
        let layers = vec![DiskLayer { data: top(), extents }];
        assert!(matches!(Disk::new(base(), layers, top(), BYTES), Err(DiskError::Extents)));
    }
}

#[test]
fn discarded_blocks_take_no_room_in_the_top() {
    let mut guest = boot();
    for sector in (0..BYTES / 512).step_by(128) {
        assert_eq!(send(&mut guest, OUT, sector, &[1; 65536], 0).0, 0);
    }
    let (status, _) = send(&mut guest, DISCARD, 0, &zero_range(0, u32::try_from(BYTES / 512).unwrap(), 0), 0);
    assert_eq!(status, 0);
    let (_, seen) = send(&mut guest, IN, 8, &[], 8192);
    assert!(seen == vec![0; 8192]);
    let extents = guest.transport.device_mut().disk().top_extents();
    assert_eq!(extents, [Extent { first_page: 0, pages: 64 }]);
}

/// The same file by a descriptor that cannot write.
fn read_only(file: &File) -> File {
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Write { at: u64, len: u64, fill: u8 },
    Zero { at: u64, len: u64, exact: bool },
    Freeze,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = (0..BYTES, 1u64..60_000).prop_map(|(at, len)| (at, len.min(BYTES - at)));
    let step = prop_oneof![
        6 => (range.clone(), any::<u8>()).prop_map(|((at, len), fill)| Step::Write { at, len, fill }),
        2 => (range, any::<bool>()).prop_map(|((at, len), exact)| Step::Zero { at, len, exact }),
        1 => Just(Step::Freeze),
    ];
    proptest::collection::vec(step, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_disk_behaves_like_an_array_of_bytes(steps in steps()) {
        let layers = vec![layer(&[1, 2, 9, 63], 0x11), layer(&[2, 10, 11], 0x22)];
        let mut disk = Disk::new(base(), layers, top(), BYTES).unwrap();
        let mut model = Vec::new();
        disk.read(0..BYTES, |_, piece| { model.extend_from_slice(piece); Ok(()) }).unwrap();
        for step in steps {
            match step {
                Step::Write { at, len, fill } => {
                    let byte = |at: u64| u8::try_from(at % 256).unwrap() ^ fill;
                    disk.write(at..at + len, |from, piece| {
                        for (to, at) in piece.iter_mut().zip(at + from..) {
                            *to = byte(at);
                        }
                        Ok(())
                    }).unwrap();
                    for at in at..at + len {
                        model[usize::try_from(at).unwrap()] = byte(at);
                    }
                }
                Step::Zero { at, len, exact } => {
                    disk.zero(at..at + len, exact).unwrap();
                    let (from, to) = match exact {
                        true => (at, at + len),
                        false => (at.next_multiple_of(BLOCK_SIZE), (at + len) / BLOCK_SIZE * BLOCK_SIZE),
                    };
                    if from < to {
                        model[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()].fill(0);
                    }
                }
                Step::Freeze => {
                    let blocks = disk.top_blocks();
                    let frozen = disk.top_extents();
                    disk.freeze_top(top(), None);
                    prop_assert_eq!(frozen.iter().map(|extent| extent.pages).sum::<u64>(), blocks);
                    prop_assert_eq!(disk.top_blocks(), 0);
                }
            }
            let mut seen = Vec::new();
            disk.read(0..BYTES, |at, piece| {
                assert_eq!(at, u64::try_from(seen.len()).unwrap());
                seen.extend_from_slice(piece);
                Ok(())
            }).unwrap();
            prop_assert!(seen == model);
        }
    }

    #[test]
    fn a_snapshot_of_a_disk_is_what_it_was(writes in proptest::collection::vec((0..63u64, any::<u8>()), 1..20)) {
        let mut disk = Disk::new(base(), Vec::new(), top(), BYTES).unwrap();
        for (block, fill) in &writes {
            let at = block * BLOCK_SIZE + 1000;
            disk.write(at..at + 5000, |_, piece| { piece.fill(*fill); Ok(()) }).unwrap();
        }
        let mut expected = Vec::new();
        disk.read(0..BYTES, |_, piece| { expected.extend_from_slice(piece); Ok(()) }).unwrap();
        let frozen_top = top();
        let mut source = Disk::new(base(), Vec::new(), frozen_top.try_clone().unwrap(), BYTES).unwrap();
        source.write(0..BYTES, |at, piece| {
            let at = usize::try_from(at).unwrap();
            piece.copy_from_slice(&expected[at..at + piece.len()]);
            Ok(())
        }).unwrap();
        let extents = source.top_extents();
        source.freeze_top(top(), Some(read_only(&frozen_top)));
        let mut read = Vec::new();
        source.read(0..BYTES, |_, piece| { read.extend_from_slice(piece); Ok(()) }).unwrap();
        prop_assert!(read == expected);
        source.write(0..BYTES, |_, piece| { piece.fill(0xee); Ok(()) }).unwrap();
        let layers = vec![DiskLayer { data: frozen_top, extents }];
        let mut child = Disk::new(base(), layers, top(), BYTES).unwrap();
        let mut seen = Vec::new();
        child.read(0..BYTES, |_, piece| { seen.extend_from_slice(piece); Ok(()) }).unwrap();
        prop_assert!(seen == expected);
    }

    #[test]
    fn hostile_rings_are_survived(ring in hostile_ring(), kind in 0u32..16, sector in 0u64..1024) {
        let mut guest = boot();
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        feed(&mut guest, 0, &ring, &header);
        let mut seen = 0;
        while guest.turn() {
            seen += 1;
            prop_assert!(seen < 10);
        }
    }
}
