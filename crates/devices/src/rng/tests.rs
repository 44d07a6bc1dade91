use std::fs::File;

use proptest::prelude::{ProptestConfig, proptest};

use super::*;
use crate::testing::{Guest, HIGH_START, conformance_suite, feed, hostile_ring, readable, writable};

fn fresh() -> RngResources {
    RngResources { source: File::open("/dev/urandom").unwrap() }
}

fn boot() -> Guest<Rng> {
    Guest::booted(Rng::new(fresh()))
}

conformance_suite!(
    Rng,
    boot,
    |guest: &mut Guest<Rng>| {
        let buffer = writable(guest.alloc(64), 64);
        assert_eq!(guest.request(0, &[buffer]), 64);
    },
    fresh
);

#[test]
fn every_buffer_is_filled_and_no_two_answers_are_alike() {
    let mut guest = boot();
    let (a, b) = (guest.alloc(32), guest.alloc(32));
    assert_eq!(guest.request(0, &[writable(a, 32), writable(b, 32)]), 64);
    let first = [guest.bytes(a, 32), guest.bytes(b, 32)];
    assert_ne!(first[0], first[1]);
    assert_ne!(first[1], vec![0; 32]);
    guest.request(0, &[writable(a, 32)]);
    assert_ne!(guest.bytes(a, 32), first[0]);
}

#[test]
fn one_answer_is_bounded() {
    let mut guest = boot();
    assert_eq!(guest.request(0, &[writable(HIGH_START, 1 << 20)]), 65536);
    assert_eq!(guest.bytes(HIGH_START + 65536, 16), [0; 16]);
}

#[test]
fn requests_that_make_no_sense_are_counted_and_given_back_empty() {
    let mut guest = boot();
    let inside = guest.alloc(16);
    for (faults, chain) in [
        (1, vec![readable(inside, 16)]),
        (2, vec![writable(crate::testing::LOW_END - 8, 16)]),
        (3, vec![writable(u64::MAX - 3, 16)]),
        (4, vec![writable(inside, 0)]),
    ] {
        assert_eq!(guest.request(0, &chain), 0);
        assert_eq!(guest.faults.count(), faults);
    }
}

#[test]
fn a_host_without_entropy_gives_none() {
    let empty = RngResources { source: tempfile::tempfile().unwrap() };
    let mut guest = Guest::booted(Rng::new(empty));
    let buffer = writable(guest.alloc(16), 16);
    assert_eq!(guest.request(0, &[buffer]), 0);
    assert_eq!(guest.faults.count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_rings_are_survived(ring in hostile_ring()) {
        let mut guest = boot();
        feed(&mut guest, 0, &ring, &[]);
    }
}
