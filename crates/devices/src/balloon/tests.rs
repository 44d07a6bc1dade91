use proptest::prelude::{ProptestConfig, proptest};
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::testing::{Guest, HIGH_START, LOW_END, conformance_suite, feed, hostile_ring, readable, writable};

const PAGE: u64 = 4096;
const REPORTING: usize = 2;

fn boot() -> Guest<Balloon> {
    Guest::booted(Balloon::new())
}

conformance_suite!(
    Balloon,
    boot,
    |guest: &mut Guest<Balloon>| {
        assert_eq!(guest.request(REPORTING, &[writable(HIGH_START, 8192)]), 0);
    },
    || ()
);

fn fill(guest: &Guest<Balloon>, start: u64, pages: usize) {
    guest.ram.write_slice(&vec![5; pages * 4096], GuestAddress(start)).unwrap();
}

fn first_bytes(guest: &Guest<Balloon>, start: u64, pages: u64) -> Vec<u8> {
    (0..pages).map(|page| guest.ram.read_obj(GuestAddress(start + page * PAGE)).unwrap()).collect()
}

#[test]
fn reported_ranges_are_given_back_and_nothing_else() {
    let mut guest = boot();
    fill(&guest, HIGH_START, 6);
    guest.request(REPORTING, &[writable(HIGH_START + PAGE, 8192), writable(HIGH_START + 4 * PAGE, 4096)]);
    assert_eq!(first_bytes(&guest, HIGH_START, 6), [5, 0, 0, 5, 0, 5]);
    assert_eq!(guest.faults.count(), 0);
}

#[test]
fn pages_of_an_inflated_balloon_are_given_back() {
    let mut guest = boot();
    fill(&guest, HIGH_START, 3);
    let list = guest.alloc(8);
    for (at, page) in [(0, HIGH_START / PAGE), (4, HIGH_START / PAGE + 2)] {
        guest.ram.write_obj(u32::try_from(page).unwrap().to_le(), GuestAddress(list + at)).unwrap();
    }
    guest.request(0, &[readable(list, 8)]);
    assert_eq!(first_bytes(&guest, HIGH_START, 3), [0, 5, 0]);
    guest.request(1, &[readable(list, 8)]);
    assert_eq!(guest.faults.count(), 0);
}

#[test]
fn what_makes_no_sense_is_counted_and_answered() {
    let mut guest = boot();
    let list = guest.alloc(4);
    guest.ram.write_obj(u32::MAX, GuestAddress(list)).unwrap();
    for (faults, queue, chain) in [
        (1, 0, readable(list, 4)),
        (2, REPORTING, writable(LOW_END - 8, 16)),
        (3, REPORTING, writable(u64::MAX - 3, 16)),
        (4, 0, readable(LOW_END, 4)),
    ] {
        assert_eq!(guest.request(queue, &[chain]), 0);
        assert_eq!(guest.faults.count(), faults);
    }
}

#[test]
fn the_driver_says_how_full_it_is_and_the_host_wants_nothing() {
    use crate::bus::BusDevice;
    const CONFIG: u64 = 0x100;
    let mut guest = boot();
    assert_eq!(guest.get(CONFIG), 0);
    guest.transport.write(CONFIG + 4, &77u32.to_le_bytes());
    assert_eq!((guest.get(CONFIG), guest.get(CONFIG + 4)), (0, 77));
    let saved = guest.transport.save();
    let mut child = guest.child(saved, ());
    assert_eq!(child.get(CONFIG + 4), 77);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn hostile_rings_are_survived(ring in hostile_ring()) {
        for queue in 0..3 {
            let mut guest = boot();
            feed(&mut guest, queue, &ring, &[]);
        }
    }
}
