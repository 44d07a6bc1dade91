//! Guests of a few instructions that are written out while they run on.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod every_page;
mod processors;
mod random;
mod writer;

use std::os::unix::fs::FileExt;

use common::{Monitor, Saved};
use forkd_protocol::control::{MemoryMode, Phase, RefusalClass, Request};
use forkd_testkit::{guard, tiny};

/// Live branches of one source.
fn rounds() -> usize {
    if soaking() { 200 } else { 20 }
}

/// Whether the large counts are asked for.
fn soaking() -> bool {
    std::env::var_os("FORKD_SOAK").is_some_and(|soak| soak == "1")
}

/// A running child of a guest that writes without end, and what lies below it.
fn source() -> (Saved, Monitor) {
    let mut parent = Monitor::start();
    parent.boot(tiny::WAVE).unwrap();
    assert_eq!(parent.printed(), *b"R");
    let base = parent.snapshot(false);
    let mut source = Monitor::start();
    source.restore(&base, true).unwrap();
    // A busy host lets a guest wait; from here on it has changed all of its pages.
    let began = std::time::Instant::now();
    while source.status().changed_pages < tiny::WAVE_PAGES {
        assert!(began.elapsed() < common::patience(), "the source does not run");
    }
    (base, source)
}

/// The numbers that the guest's pages hold in a branch.
fn wave(base: &Saved, branch: &Saved) -> Vec<u64> {
    let table = branch.own_pages();
    let number = |page: u64| {
        let own = table.iter().any(|e| (e.first_page..e.end()).contains(&page));
        let mut bytes = [0; 8];
        let file = if own { &branch.memory } else { &base.memory };
        file.read_exact_at(&mut bytes, page * 4096).unwrap();
        u64::from_le_bytes(bytes)
    };
    (0..tiny::WAVE_PAGES).map(|index| number(tiny::WAVE_START / 4096 + index)).collect()
}

/// One instant: some first pages hold a number, the others the one before.
fn assert_one_instant(wave: &[u64]) {
    let (first, last) = (wave[0], wave[wave.len() - 1]);
    assert!(wave.is_sorted_by(|a, b| a >= b) && first - last <= 1, "not of one instant: {wave:?}");
}

#[test]
fn a_live_branch_keeps_the_instant_while_the_source_writes_on() {
    if !guard::kvm() {
        return;
    }
    let (base, mut source) = source();
    let mut last = 0;
    for _ in 0..rounds() {
        let branch = source.branch(MemoryMode::Live).unwrap();
        let wave = wave(&base, &branch);
        assert_one_instant(&wave);
        assert!(wave[0] >= last, "time goes on");
        last = wave[0];
        assert!(branch.stats.writer.is_some() && branch.stats.memory.bytes > 0);
    }
    assert_eq!(source.status().phase, Phase::Running);
}

#[test]
fn a_child_of_a_branch_goes_on_from_there() {
    if !guard::kvm() {
        return;
    }
    let (base, mut source) = source();
    for mode in [MemoryMode::Changed, MemoryMode::Live] {
        let branch = source.branch(mode).unwrap();
        let before = wave(&base, &branch);
        assert_one_instant(&before);
        let mut child = Monitor::start();
        child.restore_over(&base, &branch).unwrap();
        let flat = loop {
            let flat = child.snapshot(true);
            if number(&flat, tiny::WAVE_START) > before[0] {
                break flat;
            }
        };
        let numbers: Vec<u64> =
            (0..tiny::WAVE_PAGES).map(|i| number(&flat, tiny::WAVE_START + i * 4096)).collect();
        assert_one_instant(&numbers);
    }
}

fn number(saved: &Saved, address: u64) -> u64 {
    let mut bytes = [0; 8];
    saved.memory.read_exact_at(&mut bytes, address).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn a_killed_source_leaves_a_writer_that_ends_well() {
    if !guard::kvm() {
        return;
    }
    let (base, mut source) = source();
    let (pending, told) = source.begin_live();
    drop(source);
    let branch = pending.finish(told);
    assert_one_instant(&wave(&base, &branch));
    let mut child = Monitor::start();
    child.restore_over(&base, &branch).unwrap();
    assert_eq!(child.status().phase, Phase::Running);
}

#[test]
fn a_machine_that_booted_has_no_changes_to_write() {
    if !guard::kvm() {
        return;
    }
    let mut parent = Monitor::start();
    parent.boot(tiny::WAVE).unwrap();
    assert_eq!(parent.printed(), *b"R");
    for mode in [MemoryMode::Changed, MemoryMode::Live] {
        assert_eq!(parent.branch(mode).err().unwrap().class, RefusalClass::Caller);
    }
    assert_eq!(parent.status().phase, Phase::Running);
}

#[test]
fn one_that_was_written_to_stand_still_can_go_on_with_its_disk_as_it_was() {
    if !guard::kvm() {
        return;
    }
    let (base, mut source) = source();
    let tops = source.status().tops;
    assert_eq!(tops.len(), 1);
    let written = source.stand_still();
    let paused = wave(&base, &written);
    assert_one_instant(&paused);
    assert_eq!((source.status().phase, source.status().tops), (Phase::Paused, tops.clone()));
    source.ask(Request::Resume, &[]).unwrap();
    let branch = source.branch(MemoryMode::Live).unwrap();
    assert!(wave(&base, &branch)[0] >= paused[0]);
    assert_ne!(source.status().tops, tops, "a branch puts an empty top in its place");
    let mut continued = Monitor::start();
    continued.restore_over(&base, &written).unwrap();
    assert_eq!(continued.status().phase, Phase::Running);
}
