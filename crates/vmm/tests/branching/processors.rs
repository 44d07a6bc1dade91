//! Machines with several processors that all run.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forkd_protocol::control::MemoryMode;
use forkd_testkit::guard;
use forkd_testkit::tiny::processors::{CELL, CELLS, code};
use forkd_vmm::state::MachineState;
use forkd_vmm::statefile;

use crate::common::{Monitor, Saved, bytes};

fn cells(memory: &File, count: u8) -> Vec<u32> {
    let cell = |n: u8| {
        let mut bytes = [0; 4];
        memory.read_exact_at(&mut bytes, CELLS + u64::from(n) * CELL).unwrap();
        u32::from_le_bytes(bytes)
    };
    (0..count).map(cell).collect()
}

fn state(saved: &Saved) -> MachineState {
    statefile::read(&mut bytes(&saved.state).as_slice()).unwrap()
}

/// What each processor counted, where memory and registers are of one instant.
fn counted(saved: &Saved, count: u8) -> Vec<u32> {
    let cells = cells(&saved.memory, count);
    for ((n, vcpu), cell) in (0u64..).zip(&state(saved).vcpus).zip(&cells) {
        let ahead = (vcpu.regs.rcx as u32).wrapping_sub(*cell);
        assert!(ahead <= 1, "processor {n}: register and memory differ by {ahead}");
        if n > 0 {
            assert_eq!((vcpu.regs.rbx, vcpu.sregs.cs.base), (n * CELL, 0x1_1000), "processor {n}");
        }
    }
    cells
}

/// Waits until every processor has counted beyond what it had counted.
fn goes_on(machine: &mut Monitor, from: &[u32]) {
    loop {
        let now = cells(&machine.snapshot(true).memory, from.len() as u8);
        if now.iter().zip(from).all(|(now, before)| now > before) {
            return;
        }
    }
}

fn every_processor_goes_on_in_source_and_child(count: u8) {
    if !guard::kvm() {
        return;
    }
    let mut parent = Monitor::start();
    parent.boot_with(&code(), count, 128).unwrap();
    assert_eq!(parent.printed(), *b"R");
    goes_on(&mut parent, &vec![0; count.into()]);
    let base = parent.snapshot(false);
    let mut last = counted(&base, count);
    let mut source = Monitor::start();
    source.restore(&base, true).unwrap();
    goes_on(&mut source, &last);
    for mode in [MemoryMode::Live, MemoryMode::Changed, MemoryMode::Flat, MemoryMode::Live] {
        let branch = source.branch(mode).unwrap();
        let now = counted(&branch, count);
        assert!(now.iter().zip(&last).all(|(now, before)| now >= before), "{mode:?}: {now:?} after {last:?}");
        let mut child = Monitor::start();
        let upper = (mode != MemoryMode::Flat).then_some((&branch.memory, &branch.memory_extents));
        let below = if upper.is_some() { &base.memory } else { &branch.memory };
        child.restore_layers(&branch.state, below, upper, false).unwrap();
        assert_eq!(
            counted(&child.snapshot(false), count),
            now,
            "{mode:?}: a child stands where the source did"
        );
        child.ask(forkd_protocol::control::Request::Resume, &[]).unwrap();
        goes_on(&mut child, &now);
        goes_on(&mut source, &now);
        last = now;
    }
}

#[test]
fn two_processors_go_on_in_source_and_child() {
    every_processor_goes_on_in_source_and_child(2);
}

#[test]
fn four_processors_go_on_in_source_and_child() {
    every_processor_goes_on_in_source_and_child(4);
}
