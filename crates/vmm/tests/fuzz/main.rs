//! Files and messages that no program of ours wrote: refused, or taken for what they say, and nothing in between.
//!
//! Each target runs for a moment in `cargo test`; `make fuzz SECONDS=60` gives them longer. Half of the inputs are what
//! lies in `corpus/`, changed in a few places.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forkd_memory::extents::{Extent, read_table, write_table};
use forkd_protocol::control::{Connection, ControlError, MAX_FRAME_BYTES, Reply};
use forkd_testkit::fuzz::fuzz;
use forkd_vmm::statefile;
use proptest::collection::vec;
use proptest::prelude::*;

/// A changed place: which one, and what is put there. With `None` the input ends there.
type Change = (prop::sample::Index, Option<u8>);

/// Noise, or one of `known` with a few bytes changed or an end cut off.
fn bytes_like(known: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    let change = (any::<prop::sample::Index>(), prop::option::weighted(0.95, any::<u8>()));
    let changed = (prop::sample::select(known), vec(change, 0..6))
        .prop_map(|(bytes, changes)| change_all(bytes, changes));
    prop_oneof![vec(any::<u8>(), 0..400), changed]
}

fn change_all(bytes: &[u8], changes: Vec<Change>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (place, change) in changes {
        match change {
            _ if bytes.is_empty() => {}
            Some(byte) => {
                let at = place.index(bytes.len());
                bytes[at] = byte;
            }
            None => bytes.truncate(place.index(bytes.len())),
        }
    }
    bytes
}

/// What a monitor wrote of a tiny machine: a whole file, and what it holds.
const STATES: &[&[u8]] = &[include_bytes!("corpus/state"), include_bytes!("corpus/state-payload")];
const TABLES: &[&[u8]] = &[include_bytes!("corpus/extents"), include_bytes!("corpus/extents-none")];
const FRAMES: &[&[u8]] = &[
    include_bytes!("corpus/status.json"),
    include_bytes!("corpus/restore.json"),
    include_bytes!("corpus/boot.json"),
    include_bytes!("corpus/snapshot.json"),
];

/// Input that is framed as a state file with a checksum that fits, so that what it says is looked at.
fn sealed(payload: &[u8]) -> Vec<u8> {
    let mut file = statefile::MAGIC.to_vec();
    file.extend(statefile::VERSION.to_le_bytes());
    file.extend(*b"AuthenticAMD");
    file.extend(1u32.to_le_bytes());
    file.extend([0; 4]);
    file.extend((payload.len() as u64).to_le_bytes());
    let sum = blake3::Hasher::new().update(&file).update(payload).finalize();
    file.extend(sum.as_bytes());
    file.extend(payload);
    file
}

#[test]
fn fuzz_state_file() {
    fuzz(&bytes_like(STATES), |input| {
        let _ = statefile::read(&mut input.as_slice());
        if let Ok(state) = statefile::read(&mut sealed(input).as_slice()) {
            let mut again = Vec::new();
            statefile::write(&state, &mut again).unwrap();
            let mut once_more = Vec::new();
            statefile::write(&statefile::read(&mut again.as_slice()).unwrap(), &mut once_more).unwrap();
            assert_eq!(again, once_more);
        }
    });
}

#[test]
fn fuzz_extent_table() {
    fuzz(&bytes_like(TABLES), |input| {
        let _ = read_table(&mut input.as_slice(), 1 << 20);
        // The same bytes as entries of a table that is announced right.
        let mut table = b"FKDX".to_vec();
        table.extend(1u32.to_le_bytes());
        table.extend((input.len() as u64 / 16).to_le_bytes());
        table.extend(input);
        let Ok(extents) = read_table(&mut table.as_slice(), 1 << 20) else { return };
        assert!(extents.iter().all(|e| e.pages > 0 && e.end() <= 1 << 20));
        assert!(extents.is_sorted_by(|a: &Extent, b| a.end() < b.first_page));
        let mut again = Vec::new();
        write_table(&extents, &mut again).unwrap();
        assert_eq!(again, table[..again.len()]);
    });
}

#[test]
fn fuzz_control_frame() {
    fuzz(&bytes_like(FRAMES), |input| {
        for framed in [false, true] {
            let (mut engine, monitor) = UnixStream::pair().unwrap();
            if framed {
                engine.write_all(&(input.len() as u32).to_le_bytes()).unwrap();
            }
            engine.write_all(input).unwrap();
            drop(engine);
            let mut monitor = Connection::new(monitor);
            monitor.set_timeout(Some(Duration::from_secs(5))).unwrap();
            match monitor.next_request() {
                // What was understood means the same once it is said anew.
                Ok((request, descriptors)) => {
                    assert!(descriptors.is_empty());
                    let said = serde_json::to_vec(&request).unwrap();
                    assert_eq!(
                        serde_json::from_slice::<forkd_protocol::control::Request>(&said).unwrap(),
                        request
                    );
                }
                Err(ControlError::TooLarge(length)) => assert!(length > MAX_FRAME_BYTES),
                Err(ControlError::Closed | ControlError::Malformed(_)) => {}
                Err(e) => panic!("{e:?}"),
            }
        }
        let _ = serde_json::from_slice::<Reply>(input);
    });
}
