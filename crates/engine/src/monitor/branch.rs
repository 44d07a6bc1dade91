//! Having a running machine written, while it goes on.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use forkd_protocol::control::{
    ControlVersion, FdRole, GUARD_VERSION, MemoryMode, Reply, Request, Snapshot, Snapshotted, Status,
};
use forkd_store::DraftFiles;

use super::launch::{Parcel, done};
use super::process::{ask, snapshotted};
use super::{Launcher, MonitorError, RunDir};
use crate::fault;

/// A machine that was written, or has a writer at work, and goes on.
#[derive(Debug)]
pub(crate) struct Branched {
    pub(crate) told: Snapshotted,
    dir: RunDir,
    writer: Option<OwnedFd>,
}

/// A top that nobody writes to any more.
#[derive(Debug)]
pub(crate) struct FrozenTop {
    pub(crate) data: PathBuf,
    pub(crate) table: PathBuf,
}

/// Whether monitors of a version guard what is frozen, and let go of frozen tops.
pub(crate) fn guards(version: ControlVersion) -> bool {
    version >= GUARD_VERSION
}

impl Launcher {
    /// Has the monitor thaw the workload, which is about to be frozen, unless that is [taken back](Launcher::unguard) in
    /// time; blocks.
    pub(crate) fn guard(&self, dir: &RunDir) -> Result<(), MonitorError> {
        let within_ms = u64::try_from(self.bounds().guard().as_millis()).unwrap_or(u64::MAX);
        done(ask(dir, &Request::Guard { within_ms }, &[], self.bounds().control)?)
    }

    /// The workload runs; blocks. Where this fails it is thawed once more, which does no harm.
    pub(crate) fn unguard(&self, dir: &RunDir) -> Result<(), MonitorError> {
        done(ask(dir, &Request::Unguard, &[], self.bounds().control)?)
    }

    /// Has a running machine written into a draft; blocks. Where it is refused the machine goes on as if nothing had
    /// been asked.
    pub(crate) fn branch(
        &self,
        dir: &RunDir,
        draft: &DraftFiles,
        memory: MemoryMode,
        (disk_bytes, guarded): (u64, bool),
    ) -> Result<Branched, MonitorError> {
        let files = dir.open_branch_files(disk_bytes)?;
        fault::at!("engine::branch::files_made");
        let mut parcel = Parcel::default();
        parcel.add(FdRole::StateOut, draft.state.as_fd());
        parcel.add(FdRole::MemoryOut, draft.memory.as_fd());
        parcel.add(FdRole::MemoryExtentsOut, draft.memory_extents.as_fd());
        parcel.add(FdRole::DiskExtentsOut { disk: 0 }, files.table.as_fd());
        parcel.add(FdRole::DiskTopNew { disk: 0 }, files.top.as_fd());
        if guarded {
            parcel.add(FdRole::DiskTopFrozen { disk: 0 }, files.frozen.as_fd());
        }
        let pipe = match memory {
            MemoryMode::Live => {
                Some(std::io::pipe().map_err(|e| MonitorError::file("make", "a pipe".as_ref(), e))?)
            }
            MemoryMode::Flat | MemoryMode::Changed => None,
        };
        if let Some((_, status)) = &pipe {
            parcel.add(FdRole::WriterStatus, status.as_fd());
        }
        let request = Request::Snapshot(Snapshot { roles: parcel.roles, resume: true, memory, guarded });
        match snapshotted(ask(dir, &request, &parcel.fds, self.bounds().write), self.store()) {
            // The sending end is the writer's alone from here on: its end is the end of the pipe.
            Ok(mut told) => {
                told.writer = told.writer.and_then(|own| dir.noted_process()?.child(own));
                Ok(Branched { told, dir: dir.clone(), writer: pipe.map(|(reader, _)| OwnedFd::from(reader)) })
            }
            Err(e) => {
                if e.changed_nothing() {
                    dir.remove_branch_files()?;
                }
                Err(e)
            }
        }
    }

    /// Has a machine write what it changed, after which it stands still; blocks. Its disk stays as it is. Where it is
    /// refused the machine goes on as if nothing had been asked.
    pub(crate) fn write_paused(
        &self,
        dir: &RunDir,
        draft: &DraftFiles,
        guarded: bool,
    ) -> Result<Snapshotted, MonitorError> {
        let mut parcel = Parcel::default();
        parcel.add(FdRole::StateOut, draft.state.as_fd());
        parcel.add(FdRole::MemoryOut, draft.memory.as_fd());
        parcel.add(FdRole::MemoryExtentsOut, draft.memory_extents.as_fd());
        parcel.add(FdRole::DiskExtentsOut { disk: 0 }, draft.disk_extents.as_fd());
        let memory = MemoryMode::Changed;
        let request = Request::Snapshot(Snapshot { roles: parcel.roles, resume: false, memory, guarded });
        snapshotted(ask(dir, &request, &parcel.fds, self.bounds().write), self.store())
    }

    /// Lets a machine that stands still run; blocks.
    pub(crate) fn run_on(&self, dir: &RunDir) -> Result<(), MonitorError> {
        done(ask(dir, &Request::Resume, &[], self.bounds().control)?)
    }

    /// What a monitor says about itself; blocks.
    pub(crate) fn status(&self, dir: &RunDir) -> Result<Status, MonitorError> {
        match ask(dir, &Request::Status, &[], self.bounds().control)? {
            Reply::Status(status) => Ok(status),
            _ => Err(MonitorError::WrongAnswer),
        }
    }
}

impl Branched {
    /// What a writer says comes out here.
    pub(crate) fn writer(&mut self) -> Option<OwnedFd> {
        self.writer.take()
    }

    /// Puts the new top in the place of the frozen one.
    pub(crate) fn settle(&self) -> Result<FrozenTop, MonitorError> {
        self.dir.settle_tops()
    }
}
