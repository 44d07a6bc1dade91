//! Monitors without a controller: forkd-vmm spoken to directly, a guest of kernel and busybox that answers pings
//! on its serial line. The same is done with other monitors, so that figures can be put side by side.
//!
//! ```text
//!   boot -> READY -> ping, pong -> snapshot
//!   for each N:  start N monitors; restore each; ping each        (in a row, as the reference does it)
//!                the same with monitors that wait already         (started ahead, as the engine's pool has them)
//!                the same with as many threads as processors      (side by side)
//! ```

pub(crate) mod elsewhere;
mod guest;
mod monitor;
mod report;
mod rounds;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use forkd_protocol::control::{LayerStats, Snapshotted};
use forkd_protocol::error::ErrorClass;

use super::room::{self, Place};
use super::spread::micros;
use super::stop::Stop;
use crate::error::CliError;
use crate::machine::programs::Programs;
use crate::ui::{self, Ui};

use monitor::Workshop;
use report::Round;
pub(crate) use report::{Against, Report};
use rounds::Rounds;

/// A benchmark of monitors.
#[derive(Debug)]
pub(crate) struct Bare<'a> {
    ui: &'a Ui,
    stop: Stop,
    kernel: PathBuf,
    folder: PathBuf,
    /// Removes the folder, where nobody wants to keep it.
    _temporary: Option<tempfile::TempDir>,
}

/// What children are restored from, opened once.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) state: File,
    pub(super) memory: File,
    extents: File,
    /// Pages that every child changes, once that is known.
    pub(super) hot: Option<File>,
}

impl<'a> Bare<'a> {
    /// With `kernel`; ramdisk and snapshot go into `folder`, where one is given.
    pub(crate) fn new(
        ui: &'a Ui,
        stop: Stop,
        kernel: PathBuf,
        folder: Option<PathBuf>,
    ) -> Result<Self, CliError> {
        let (folder, temporary) = match folder {
            Some(folder) => (folder, None),
            None => {
                let made = tempfile::tempdir().map_err(|e| CliError::io("making a temporary folder", e))?;
                (made.path().to_owned(), Some(made))
            }
        };
        let failed = |e| CliError::io(format!("making {}", folder.display()), e);
        fs::create_dir_all(&folder).map_err(failed)?;
        // Mappings are known by the files' true names.
        let folder = folder.canonicalize().map_err(failed)?;
        Ok(Self { ui, stop, kernel, folder, _temporary: temporary })
    }

    /// All of it; blocks.
    pub(crate) fn run(&self, counts: &[u32], against: &[Against]) -> Result<Report, CliError> {
        let ramdisk = self.file("ramdisk");
        guest::write_ramdisk(&ramdisk)?;
        let workshop = Workshop::new(&self.folder, Programs::here()?.path("forkd-vmm"), self.stop.clone())?;
        let mut saved = self.saved()?;
        let step = self.ui.step("Booting the parent");
        let mut parent = workshop.start("parent")?;
        let began = Instant::now();
        parent.boot(&self.kernel, &ramdisk)?;
        parent.await_word(guest::READY)?;
        let boot_us = micros(began.elapsed());
        parent.ping()?;
        parent.await_word(guest::PONG)?;
        step.done("");
        let step = self.ui.step("Freezing it");
        let began = Instant::now();
        let Snapshotted { memory, .. } = parent.snapshot(&saved.state, &saved.memory, &saved.extents)?;
        let snapshot_us = micros(began.elapsed());
        drop(parent);
        step.done(&ui::size(memory.bytes));
        let step = self.ui.step("Trying it");
        let began = Instant::now();
        saved.hot = Some(self.scout(&workshop, &saved)?);
        let scout_us = micros(began.elapsed());
        step.done("");

        let (rounds, stopped) = self.rounds(&Rounds::new(&workshop, &saved, self.folder.as_path()), counts);
        if let (true, Some(e)) = (rounds.is_empty(), stopped.as_ref()) {
            return Err(CliError::local(e.class().unwrap_or(ErrorClass::Internal), ui::in_words(e)));
        }
        let LayerStats { extents, bytes } = memory;
        let mut report = Report {
            kernel: self.kernel.clone(),
            ramdisk,
            boot_us,
            snapshot_us,
            scout_us,
            memory_bytes: bytes,
            memory_extents: extents,
            state_bytes: saved.state.metadata().map_or(0, |m| m.len()),
            rounds,
            stopped: stopped.map(|e| ui::in_words(&e)),
            lines: Vec::new(),
            goals: Vec::new(),
        };
        report.judge(against);
        Ok(report)
    }

    /// One child that answers tells which pages all of them will change, as the engine does it.
    fn scout(&self, workshop: &Workshop, saved: &Saved) -> Result<File, CliError> {
        let hot = self.create("hot")?;
        let mut child = workshop.start("scout")?;
        child.restore(saved)?;
        child.ping()?;
        child.await_word(guest::PONG)?;
        child.changed(&hot)?;
        Ok(hot)
    }

    /// Rounds until one does not work; and why it did not.
    fn rounds(&self, rounds: &Rounds<'_>, counts: &[u32]) -> (Vec<Round>, Option<CliError>) {
        let mut done: Vec<Round> = Vec::new();
        for &n in counts {
            let each = done.last().map_or(0, Round::each_bytes);
            let refused = Place::Here.available_mib().and_then(|mib| room::refusal(n, each, mib));
            if let Some(why) = refused {
                return (done, Some(CliError::local(ErrorClass::Exhausted, why)));
            }
            let step = self.ui.step(format!("{n} children"));
            for round in [Rounds::in_a_row, Rounds::started_ahead, Rounds::side_by_side] {
                match round(rounds, n) {
                    Ok(round) => done.push(round),
                    Err(e) => return (done, Some(e)),
                }
            }
            step.done("");
        }
        (done, None)
    }

    fn saved(&self) -> Result<Saved, CliError> {
        Ok(Saved {
            state: self.create("state")?,
            memory: self.create("memory")?,
            extents: self.create("extents")?,
            hot: None,
        })
    }

    fn create(&self, name: &str) -> Result<File, CliError> {
        let path = self.file(name);
        let opened = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        opened.map_err(|e| CliError::io(format!("making {}", path.display()), e))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// The newest kernel in the store at `root`. The store itself may be open in a controller, so its files are
/// looked at, not its rows.
pub(crate) fn kernel(root: &Path) -> Option<PathBuf> {
    let folders = fs::read_dir(root.join("kernels")).ok()?.flatten();
    let files = folders.map(|folder| folder.path().join("vmlinuz")).filter(|path| path.is_file());
    files.max_by_key(|path| path.metadata().and_then(|m| m.modified()).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_of_a_store_is_found_by_its_file() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(kernel(root.path()), None);
        for (name, age) in [("a", 50), ("b", 10), ("c", 90)] {
            let folder = root.path().join("kernels").join(name);
            fs::create_dir_all(&folder).unwrap();
            let file = File::create(folder.join("vmlinuz")).unwrap();
            file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        fs::create_dir_all(root.path().join("kernels/half")).unwrap();
        assert_eq!(kernel(root.path()), Some(root.path().join("kernels/b/vmlinuz")));
    }
}
