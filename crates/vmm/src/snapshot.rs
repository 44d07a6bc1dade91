//! Writing a machine out: state, memory layer, frozen tops of its disks.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;

use forkd_memory::PAGE_SIZE;
use forkd_memory::changed::Pagemap;
use forkd_memory::dump;
use forkd_memory::extents::{Extent, ExtentsError, data_extents, write_table};
use forkd_memory::writer::{Scratch, write_changed};
use forkd_protocol::control::{FdRole, LayerStats, MemoryMode, Snapshot, Snapshotted};

use crate::error::MonitorError;
use crate::handed::Handed;
use crate::jail::Filter;
use crate::machine::Machine;
use crate::state::MachineState;
use crate::statefile::{self, StateFileError};
use crate::writer::{self, Job};

/// Where a snapshot goes. All of it is there before the machine is touched.
#[derive(Debug)]
struct Outputs {
    state: File,
    memory: File,
    memory_extents: File,
    how: How,
    disks: Vec<DiskOutputs>,
}

/// Where a disk goes.
#[derive(Debug)]
struct DiskOutputs {
    /// Lists what its top holds.
    table: File,
    /// What takes the top's place where the machine runs on.
    new_top: Option<File>,
    /// The top itself, for reading.
    frozen: Option<File>,
}

/// How memory is written.
#[derive(Debug)]
enum How {
    Flat,
    Changed,
    /// By a writer, which says in this pipe how it ended.
    Live {
        status: File,
        filter: Filter,
    },
}

impl Outputs {
    fn take(handed: &mut Handed, disks: usize, request: &Snapshot) -> Result<Self, MonitorError> {
        let mut disk_outputs = Vec::with_capacity(disks);
        for disk in (0u8..).take(disks) {
            let table = handed.file(FdRole::DiskExtentsOut { disk })?;
            let new_top = request.resume.then(|| handed.file(FdRole::DiskTopNew { disk })).transpose()?;
            let frozen = handed.take(FdRole::DiskTopFrozen { disk }).map(File::from);
            disk_outputs.push(DiskOutputs { table, new_top, frozen });
        }
        let how = match request.memory {
            MemoryMode::Flat => How::Flat,
            MemoryMode::Changed => How::Changed,
            MemoryMode::Live => {
                How::Live { status: handed.file(FdRole::WriterStatus)?, filter: writer::of_writer()? }
            }
        };
        Ok(Self {
            state: handed.file(FdRole::StateOut)?,
            memory: handed.file(FdRole::MemoryOut)?,
            memory_extents: handed.file(FdRole::MemoryExtentsOut)?,
            how,
            disks: disk_outputs,
        })
    }
}

impl Machine {
    /// Stops the machine, writes it out, and lets it run on where `request` says so and it ran before.
    ///
    /// The tops of the disks are frozen last: what can fail (a full disk) comes before, and then the machine
    /// goes on as if nothing had been asked.
    ///
    /// # Errors
    /// An output is missing, writing failed, or changes are asked of a machine that booted and so lies on nothing.
    pub fn snapshot(&mut self, mut handed: Handed, request: &Snapshot) -> Result<Snapshotted, MonitorError> {
        if request.memory != MemoryMode::Flat && self.below.is_none() {
            return Err(MonitorError::NothingBelow);
        }
        let outputs = Outputs::take(&mut handed, self.devices.disk_count(), request)?;
        self.check_frozen(&outputs.disks)?;
        let was_running = self.is_running();
        let begun = Instant::now();
        self.pause()?;
        if let Some(end) = self.vcpus.end() {
            return Err(MonitorError::GuestEnded(end));
        }
        let written = self.write_out(outputs);
        if was_running && (request.resume || written.is_err()) {
            self.resume()?;
        }
        let pause_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(Snapshotted { pause_us, ..written? })
    }

    /// What is to be read in the place of a top must be that top.
    fn check_frozen(&self, disks: &[DiskOutputs]) -> Result<(), MonitorError> {
        let tops = self.devices.top_inodes().map_err(MonitorError::Events)?;
        for (disk, top) in disks.iter().zip(tops) {
            if let Some(frozen) = &disk.frozen
                && frozen.metadata().map_err(MonitorError::Events)?.ino() != top
            {
                return Err(MonitorError::OtherTop);
            }
        }
        Ok(())
    }

    fn write_out(&mut self, outputs: Outputs) -> Result<Snapshotted, MonitorError> {
        let mut out = BufWriter::new(outputs.state);
        statefile::write(&self.save()?, &mut out).map_err(|e| match e {
            StateFileError::Io(e) => MonitorError::Write(e),
            other => other.into(),
        })?;
        out.flush().map_err(MonitorError::Write)?;

        let mut disks = Vec::with_capacity(outputs.disks.len());
        let mut tops = Vec::with_capacity(outputs.disks.len());
        for (number, DiskOutputs { table, new_top, frozen }) in outputs.disks.into_iter().enumerate() {
            disks.push(write_extents(&self.devices.top_extents(number), table)?);
            tops.push((new_top, frozen));
        }
        let (data, table) = (outputs.memory, outputs.memory_extents);
        let (memory, writer) = match outputs.how {
            How::Flat => (self.write_flat(&data, table)?, None),
            How::Changed => (self.write_changes(&data, &table)?, None),
            How::Live { status, filter } => {
                let proc_dir = Arc::clone(&self.proc_dir);
                let job = Job { data, table, status, proc_dir, scratch: Scratch::default(), filter };
                let pid = writer::fork(&self.ram, job).map_err(MonitorError::Fork)?;
                (LayerStats::default(), Some(pid))
            }
        };
        // What can fail has been done.
        for (number, (new_top, frozen)) in tops.into_iter().enumerate() {
            if let Some(new_top) = new_top {
                self.devices.freeze_top(number, new_top, frozen);
            }
        }
        Ok(Snapshotted { pause_us: 0, memory, disks, writer })
    }

    fn write_flat(&self, data: &File, table: File) -> Result<LayerStats, MonitorError> {
        let below = self.pages_below()?;
        let extents =
            dump::write_all(&self.ram, self.proc_dir.as_fd(), &below, data).map_err(MonitorError::Write)?;
        write_extents(&extents, table)
    }

    fn write_changes(&self, data: &File, table: &File) -> Result<LayerStats, MonitorError> {
        let pagemap = Pagemap::open(self.proc_dir.as_fd()).map_err(MonitorError::Pagemap)?;
        let written = write_changed(&self.ram, &pagemap, (data, table), &mut Scratch::default())
            .map_err(MonitorError::Write)?;
        Ok(LayerStats { extents: written.extents, bytes: written.pages * PAGE_SIZE })
    }

    fn save(&self) -> Result<MachineState, MonitorError> {
        // Devices before vCPUs: a device's last words to the guest are interrupts, which the vCPUs' local
        // controllers hold.
        let devices = self.devices.save();
        let vcpus = self.vcpus.save()?;
        Ok(MachineState { memory_mib: self.memory_mib, vm: self.vm.save()?, vcpus, devices })
    }

    /// Pages that the layers below hold.
    fn pages_below(&self) -> Result<Vec<Extent>, MonitorError> {
        let Some(below) = &self.below else { return Ok(Vec::new()) };
        let base = data_extents(&below.base).map_err(MonitorError::Write)?;
        Ok(union(&base, &below.upper))
    }
}

/// Writes a table of extents to its end.
pub(crate) fn write_extents(extents: &[Extent], table: File) -> Result<LayerStats, MonitorError> {
    let mut out = BufWriter::new(table);
    write_table(extents, &mut out).map_err(|e| match e {
        ExtentsError::Io(e) => MonitorError::Write(e),
        other => other.into(),
    })?;
    out.flush().map_err(MonitorError::Write)?;
    let pages: u64 = extents.iter().map(|e| e.pages).sum();
    Ok(LayerStats { extents: extents.len() as u64, bytes: pages * PAGE_SIZE })
}

/// The pages of either list, as one sorted list.
fn union(a: &[Extent], b: &[Extent]) -> Vec<Extent> {
    let mut all: Vec<Extent> = a.iter().chain(b).copied().collect();
    all.sort_by_key(|e| e.first_page);
    let mut merged: Vec<Extent> = Vec::with_capacity(all.len());
    for extent in all {
        match merged.last_mut() {
            Some(last) if extent.first_page <= last.end() => {
                last.pages = last.pages.max(extent.end() - last.first_page)
            }
            _ => merged.push(extent),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_and_touching_extents_become_one() {
        let e = |first_page, pages| Extent { first_page, pages };
        assert_eq!(union(&[e(0, 2), e(10, 5)], &[e(2, 3), e(12, 1)]), [e(0, 5), e(10, 5)]);
        assert_eq!(union(&[], &[]), []);
    }
}
