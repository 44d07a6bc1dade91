//! Every page of a guest, on both sides of the hole below 4 GiB, in a chain of three branches.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forkd_memory::extents::{Extent, write_table};
use forkd_memory::layout::{HOLE_END, HOLE_START};
use forkd_protocol::control::MemoryMode;
use forkd_testkit::guard;
use forkd_testkit::tiny::pattern::{self, Range};

use crate::common::{Monitor, Saved, from_bytes};

/// Pages that are read at once.
const STEP: u64 = 256;

/// What a guest has and which of its pages it marks: few of the low ones and all above the hole, or all of 6 GiB but
/// those that hold its code and what it boots with.
fn guest() -> (u32, Vec<Range>) {
    const MIB: u64 = 1 << 20;
    let after_code = MIB + 4096;
    if crate::soaking() {
        return (6144, vec![(after_code, (HOLE_START - after_code) / 4096), (HOLE_END, (3072 * MIB) / 4096)]);
    }
    let below_hole = (HOLE_START - 4 * MIB, 4 * MIB / 4096);
    (3072 + 16, vec![(after_code, MIB / 4096), below_hole, (HOLE_END, 16 * MIB / 4096)])
}

/// A machine at rest: its state, a base, and what lies over it.
struct Level {
    state: File,
    base: File,
    upper: Option<Upper>,
}

/// One file of pages over a base, as the store merges them.
struct Upper {
    data: File,
    runs: Vec<Extent>,
}

impl Level {
    fn whole(saved: Saved) -> Self {
        Self { state: saved.state, base: saved.memory, upper: None }
    }

    fn restore(&self, run: bool) -> Monitor {
        let mut child = Monitor::start();
        let table = self.upper.as_ref().map(|upper| {
            let mut bytes = Vec::new();
            write_table(&upper.runs, &mut bytes).unwrap();
            from_bytes(&bytes)
        });
        let upper = self.upper.as_ref().zip(table.as_ref()).map(|(upper, table)| (&upper.data, table));
        child.restore_layers(&self.state, &self.base, upper, run).unwrap();
        child
    }

    /// The level that a branch of this one's child is.
    fn over(&self, branch: Saved, mode: MemoryMode) -> Self {
        if mode == MemoryMode::Flat {
            return Self::whole(branch);
        }
        let mut own = branch.own_pages();
        let below = self.upper.as_ref().map(|upper| upper.runs.clone()).unwrap_or_default();
        let data = tempfile::tempfile().unwrap();
        data.set_len(branch.memory.metadata().unwrap().len()).unwrap();
        if let Some(upper) = &self.upper {
            copy_runs(&upper.data, &data, &upper.runs);
        }
        copy_runs(&branch.memory, &data, &own);
        own.extend(below);
        let runs = merged(own);
        // What lies between the runs that were merged comes from below.
        let filled = gaps(&runs, &branch.own_pages(), self.upper.as_ref());
        copy_runs(&self.base, &data, &filled);
        Self { state: branch.state, base: self.base.try_clone().unwrap(), upper: Some(Upper { data, runs }) }
    }
}

fn copy_runs(from: &File, to: &File, runs: &[Extent]) {
    let mut buffer = vec![0; (STEP * 4096) as usize];
    for run in runs {
        for first in (run.first_page..run.end()).step_by(STEP as usize) {
            let bytes = &mut buffer[..(STEP.min(run.end() - first) * 4096) as usize];
            from.read_exact_at(bytes, first * 4096).unwrap();
            to.write_all_at(bytes, first * 4096).unwrap();
        }
    }
}

/// Few runs that contain all of these: small gaps are filled.
fn merged(mut runs: Vec<Extent>) -> Vec<Extent> {
    runs.sort_by_key(|run| run.first_page);
    let mut out: Vec<Extent> = Vec::new();
    for run in runs {
        match out.last_mut() {
            Some(last) if run.first_page <= last.end() + 8 => {
                last.pages = last.end().max(run.end()) - last.first_page;
            }
            _ => out.push(run),
        }
    }
    out
}

/// The pages of `runs` that neither `own` nor `upper` lists.
fn gaps(runs: &[Extent], own: &[Extent], upper: Option<&Upper>) -> Vec<Extent> {
    let mut listed: Vec<Extent> =
        own.iter().chain(upper.iter().flat_map(|upper| &upper.runs)).copied().collect();
    listed.sort_by_key(|run| run.first_page);
    let mut listed = listed.into_iter().peekable();
    let mut gaps = Vec::new();
    for run in runs {
        let mut at = run.first_page;
        while let Some(next) = listed.next_if(|next| next.first_page < run.end()) {
            if next.first_page > at {
                gaps.push(Extent { first_page: at, pages: next.first_page - at });
            }
            at = at.max(next.end());
        }
        assert!(at >= run.end(), "a run ends with a page that somebody lists");
    }
    gaps
}

/// All pages hold what the newest of the digits that mark them left there.
fn assert_marked(memory: &File, ranges: &[Range], digits: &[u8], what: &str) {
    let mut bytes = vec![0; (STEP * 4096) as usize];
    for (start, pages) in ranges {
        for first in (0..*pages).step_by(STEP as usize) {
            let count = STEP.min(pages - first);
            let bytes = &mut bytes[..(count * 4096) as usize];
            memory.read_exact_at(bytes, start + first * 4096).unwrap();
            for (index, page) in (first..).zip(bytes.chunks(4096)) {
                let digit = digits.iter().rev().find(|digit| pattern::marks(**digit, index)).unwrap();
                let address = start + index * 4096;
                let mark = pattern::mark(address, *digit).to_le_bytes();
                let middle_is_empty = page[8..4088].iter().all(|byte| *byte == 0);
                assert!(page[..8] == mark && page[4088..] == mark && middle_is_empty, "{what}: {address:#x}");
            }
        }
    }
}

fn mark(machine: &mut Monitor, digits: &[u8]) {
    for digit in digits {
        machine.type_in(&[*digit]);
        assert_eq!(machine.printed(), [*digit]);
    }
}

#[test]
fn every_page_of_every_level_of_a_chain_is_right_in_each_mode() {
    if !guard::kvm() {
        return;
    }
    let (mib, ranges) = guest();
    let mut parent = Monitor::start();
    parent.boot_with(&pattern::code(&ranges), 1, mib).unwrap();
    assert_eq!(parent.printed(), *b"R");
    mark(&mut parent, b"012");
    let base = Level::whole(parent.snapshot(false));
    drop(parent);
    assert_marked(&base.base, &ranges, b"012", "the base");
    for mode in [MemoryMode::Flat, MemoryMode::Changed, MemoryMode::Live] {
        let mut level = Level {
            state: base.state.try_clone().unwrap(),
            base: base.base.try_clone().unwrap(),
            upper: None,
        };
        let mut marked = b"012".to_vec();
        for digit in *b"345" {
            let mut source = level.restore(true);
            mark(&mut source, &[digit]);
            let branch = source.branch(mode).unwrap();
            // The source goes on, which the branch must not notice.
            mark(&mut source, b"678");
            marked.push(digit);
            level = level.over(branch, mode);
            let child = level.restore(false).snapshot(false);
            assert_marked(&child.memory, &ranges, &marked, &format!("{mode:?}, {}", digit as char));
        }
    }
}
