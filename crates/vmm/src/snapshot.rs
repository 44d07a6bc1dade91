//! Writing a machine out: state, memory layer, frozen tops of its disks.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::time::Instant;

use forkd_memory::PAGE_SIZE;
use forkd_memory::dump;
use forkd_memory::extents::{Extent, ExtentsError, data_extents, write_table};
use forkd_protocol::control::{FdRole, LayerStats, Snapshotted};

use crate::error::MonitorError;
use crate::handed::Handed;
use crate::machine::Machine;
use crate::state::MachineState;
use crate::statefile::{self, StateFileError};

/// Where a snapshot goes. All of it is there before the machine is touched.
#[derive(Debug)]
struct Outputs {
    state: File,
    memory: File,
    memory_extents: File,
    disks: Vec<(File, Option<File>)>,
}

impl Outputs {
    fn take(handed: &mut Handed, disks: usize, resume: bool) -> Result<Self, MonitorError> {
        let mut disk_outputs = Vec::with_capacity(disks);
        for disk in (0u8..).take(disks) {
            let extents = handed.file(FdRole::DiskExtentsOut { disk })?;
            let new_top = resume.then(|| handed.file(FdRole::DiskTopNew { disk })).transpose()?;
            disk_outputs.push((extents, new_top));
        }
        Ok(Self {
            state: handed.file(FdRole::StateOut)?,
            memory: handed.file(FdRole::MemoryOut)?,
            memory_extents: handed.file(FdRole::MemoryExtentsOut)?,
            disks: disk_outputs,
        })
    }
}

impl Machine {
    /// Stops the machine, writes it out, and lets it run on where `resume` says so and it ran before.
    ///
    /// The tops of the disks are frozen last: what can fail (a full disk) comes before, and then the machine
    /// goes on as if nothing had been asked.
    ///
    /// # Errors
    /// An output is missing, or writing failed.
    pub fn snapshot(&mut self, mut handed: Handed, resume: bool) -> Result<Snapshotted, MonitorError> {
        let outputs = Outputs::take(&mut handed, self.devices.disk_count(), resume)?;
        let was_running = self.is_running();
        let begun = Instant::now();
        self.pause()?;
        if let Some(end) = self.vcpus.end() {
            return Err(MonitorError::GuestEnded(end));
        }
        let written = self.write_out(outputs);
        if was_running && (resume || written.is_err()) {
            self.resume()?;
        }
        let (memory, disks) = written?;
        Ok(Snapshotted {
            pause_us: u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX),
            memory,
            disks,
        })
    }

    fn write_out(&mut self, outputs: Outputs) -> Result<(LayerStats, Vec<LayerStats>), MonitorError> {
        let Outputs { state, memory, memory_extents, disks } = outputs;
        let mut out = BufWriter::new(state);
        statefile::write(&self.save()?, &mut out).map_err(|e| match e {
            StateFileError::Io(e) => MonitorError::Write(e),
            other => other.into(),
        })?;
        out.flush().map_err(MonitorError::Write)?;

        let below = self.pages_below()?;
        let extents = dump::write_all(&self.ram, self.proc_dir.as_fd(), &below, &memory)
            .map_err(MonitorError::Write)?;
        let memory = write_extents(&extents, memory_extents)?;
        let mut frozen = Vec::with_capacity(disks.len());
        for (number, (table, new_top)) in disks.into_iter().enumerate() {
            frozen.push(write_extents(&self.devices.freeze_top(number, new_top), table)?);
        }
        Ok((memory, frozen))
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

fn write_extents(extents: &[Extent], table: File) -> Result<LayerStats, MonitorError> {
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
