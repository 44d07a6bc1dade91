//! A guest that writes at random while it is branched.

use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use forkd_protocol::control::{MemoryMode, Phase};
use forkd_testkit::guard;
use forkd_testkit::tiny::scatter;

use crate::common::{Monitor, Saved};

/// A bound that only what hangs reaches.
const HANGS: Duration = Duration::from_secs(120);

/// The numbers in the guest's pages, as a child would find them.
fn pages(base: &Saved, branch: &Saved) -> Vec<u64> {
    let own = branch.own_pages();
    let number = |page: u64| {
        let file = if own.iter().any(|e| (e.first_page..e.end()).contains(&page)) { branch } else { base };
        let mut bytes = [0; 8];
        file.memory.read_exact_at(&mut bytes, page * 4096).unwrap();
        u64::from_le_bytes(bytes)
    };
    (0..scatter::PAGES).map(|index| number(scatter::START / 4096 + index)).collect()
}

#[test]
fn each_branch_holds_the_memory_of_one_instant_to_the_last_write() {
    if !guard::kvm() {
        return;
    }
    let mut parent = Monitor::start();
    parent.boot(scatter::CODE).unwrap();
    assert_eq!(parent.printed(), *b"R");
    let base = parent.snapshot(false);
    let mut source = Monitor::start();
    source.restore(&base, true).unwrap();
    let (mut last, mut round, mut moved) = (0, 0, Instant::now());
    while round < crate::rounds() {
        let mode = if round % 5 == 4 { MemoryMode::Changed } else { MemoryMode::Live };
        let branch = source.branch(mode).unwrap();
        let found = pages(&base, &branch);
        let newest = *found.iter().max().unwrap();
        assert!(found == scatter::pages_after(newest), "round {round}, {mode:?}: not of one instant");
        // A guest gets what a busy host leaves, which between two branches can be nothing.
        if newest > last {
            (last, round, moved) = (newest, round + 1, Instant::now());
        }
        assert!(moved.elapsed() < HANGS, "round {round}: the source stands still");
    }
    assert_eq!(source.status().phase, Phase::Running);
    source.without_writers();
}
