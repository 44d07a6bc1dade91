//! Writers of live branches that do not come to their end, and outputs that take nothing.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use forkd_protocol::control::{FdRole, MemoryMode, Phase, RefusalClass, WriterEnd};
use forkd_testkit::guard;
use forkd_testkit::room::SmallDisk;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Monitor, writer_end};

/// The source runs, a process that wrote for it is gone without a trace, and it can be branched again.
fn assert_well(source: &mut Monitor) {
    assert_eq!(source.status().phase, Phase::Running);
    source.without_writers();
    let branch = source.branch(MemoryMode::Live).unwrap();
    assert!(branch.stats.memory.bytes > 0);
}

fn kill(writer: u32) {
    let _ = kill_process(Pid::from_raw(writer.cast_signed()).unwrap(), Signal::KILL);
}

/// Waits until there is no such process: nobody else takes its number meanwhile.
fn gone(writer: u32) {
    while Path::new(&format!("/proc/{writer}")).exists() {
        std::thread::yield_now();
    }
}

#[test]
fn a_writer_that_is_killed_says_nothing_and_leaves_nothing() {
    if !guard::kvm() {
        return;
    }
    let (_base, mut source) = crate::source();
    // Its pipe is full, so it has written all and cannot say so.
    let (told, mut status) = std::io::pipe().unwrap();
    status.write_all(&[b' '; 65536]).unwrap();
    let (branch, unused) =
        source.branch_into(MemoryMode::Live, FdRole::WriterStatus, status.as_fd()).unwrap();
    drop((status, unused));
    let writer = source.writer(&branch);
    assert_eq!(source.offspring(), [writer]);
    kill(writer);
    // Not before: a pipe that has room again wakes the writer, which may speak before it dies.
    gone(writer);
    assert_eq!(writer_end(told), None);
    assert_well(&mut source);
}

#[test]
fn writers_that_are_killed_at_any_moment_leave_a_source_that_runs() {
    if !guard::kvm() {
        return;
    }
    let (_base, mut source) = crate::source();
    for _ in 0..crate::rounds() {
        let (_branch, told) = source.begin_live();
        // It may have ended by now.
        source.offspring().into_iter().for_each(kill);
        assert!(matches!(writer_end(told), None | Some(WriterEnd::Written { .. })));
        source.without_writers();
    }
    assert_well(&mut source);
}

#[test]
fn outputs_that_take_nothing_fail_the_branch_and_not_the_source() {
    if !guard::kvm() {
        return;
    }
    let Some(disk) = SmallDisk::mount(1) else { return };
    let (_base, mut source) = crate::source();
    let full = File::options().read(true).write(true).create_new(true).open(disk.path().join("out")).unwrap();
    let ballast = disk.fill_but(4).unwrap();
    for role in [FdRole::MemoryOut, FdRole::MemoryExtentsOut] {
        let (_, told) = source.branch_into(MemoryMode::Live, role, full.as_fd()).unwrap();
        // A table of few pages fits into what is left.
        if role == FdRole::MemoryOut {
            assert_eq!(writer_end(told), Some(WriterEnd::Failed { errno: 28 }));
        } else {
            assert!(matches!(writer_end(told), Some(WriterEnd::Written { .. })));
        }
        full.set_len(0).unwrap();
        assert_well(&mut source);
    }
    let everything = [FdRole::StateOut, FdRole::MemoryOut];
    for (mode, role) in
        [MemoryMode::Flat, MemoryMode::Changed].into_iter().flat_map(|m| everything.map(|r| (m, r)))
    {
        let refused = source.branch_into(mode, role, full.as_fd()).err().unwrap();
        assert_eq!(refused.class, RefusalClass::Exhausted, "{mode:?} {role:?}: {}", refused.message);
        full.set_len(0).unwrap();
        assert_well(&mut source);
    }
    drop(ballast);
    let (branch, told) = source.branch_into(MemoryMode::Live, FdRole::MemoryOut, full.as_fd()).unwrap();
    assert!(branch.finish(told).stats.memory.bytes > 0, "and works once there is room");
}

#[test]
fn an_output_that_is_a_closed_pipe_fails_the_branch_and_not_the_source() {
    if !guard::kvm() {
        return;
    }
    let (_base, mut source) = crate::source();
    for role in [FdRole::MemoryOut, FdRole::MemoryExtentsOut] {
        let (reader, pipe) = std::io::pipe().unwrap();
        drop(reader);
        let (_, told) = source.branch_into(MemoryMode::Live, role, pipe.as_fd()).unwrap();
        assert!(matches!(writer_end(told), Some(WriterEnd::Failed { .. })), "{role:?}");
        assert_well(&mut source);
    }
    // Nobody listens to what the writer says.
    let (reader, status) = std::io::pipe().unwrap();
    drop(reader);
    let (branch, _) = source.branch_into(MemoryMode::Live, FdRole::WriterStatus, status.as_fd()).unwrap();
    assert!(branch.stats.writer.is_some());
    source.without_writers();
    assert_well(&mut source);
    let full = File::options().write(true).open("/dev/full").unwrap();
    let refused = source.branch_into(MemoryMode::Live, FdRole::StateOut, full.as_fd()).err().unwrap();
    assert_eq!(refused.class, RefusalClass::Exhausted);
    assert_well(&mut source);
}
