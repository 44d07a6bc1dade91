//! Where the machine keeps what belongs to it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forkd_store::make::cache_dir;

use super::error::MachineError;
use crate::ui::Ui;

/// One folder for one machine, and one for what all machines share.
#[derive(Debug, Clone)]
pub(crate) struct Dirs {
    state: PathBuf,
    cache: PathBuf,
}

impl Dirs {
    /// `FORKD_MACHINE_DIR` (else `~/.local/share/forkd/machine`) and `FORKD_CACHE_DIR` (else `~/.cache/forkd`).
    pub(crate) fn from_env() -> Self {
        let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into()));
        let state = std::env::var_os("FORKD_MACHINE_DIR")
            .filter(|d| !d.is_empty())
            .map_or_else(|| home().join(".local/share/forkd/machine"), PathBuf::from);
        Self::new(std::path::absolute(&state).unwrap_or(state), cache_dir())
    }

    pub(crate) fn new(state: PathBuf, cache: PathBuf) -> Self {
        Self { state, cache }
    }

    /// The folder of this machine.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// The folder that machines share.
    pub(crate) fn cache(&self) -> &Path {
        &self.cache
    }

    /// A file of this machine.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.state.join(name)
    }

    /// The note about the running machine.
    pub(crate) fn record(&self) -> PathBuf {
        self.file("machine.json")
    }

    /// What sandboxes and snapshots live on.
    pub(crate) fn data_disk(&self) -> PathBuf {
        self.file("data.raw")
    }

    /// What the kernel and the start scripts print.
    pub(crate) fn serial_log(&self) -> PathBuf {
        self.file("serial.log")
    }

    /// What the controller prints.
    pub(crate) fn controller_log(&self) -> PathBuf {
        self.file("controller.log")
    }

    /// Makes both folders. Keys lie in the first: nobody else may look in.
    pub(crate) fn create(&self) -> Result<(), MachineError> {
        for (dir, mode) in [(&self.state, 0o700), (&self.cache, 0o755)] {
            let made = fs::DirBuilder::new().recursive(true).mode(mode).create(dir);
            made.map_err(|e| MachineError::io("create", dir, e))?;
        }
        Ok(())
    }

    /// Waits until no other start, stop or removal of this machine is under way.
    pub(crate) fn lock(&self, ui: &Ui) -> Result<File, MachineError> {
        let path = self.file("lock");
        let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = opened.map_err(|e| MachineError::io("open", &path, e))?;
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                ui.note("another forkd is starting or stopping the machine; waiting")
            }
            Err(TryLockError::Error(e)) => return Err(MachineError::io("lock", &path, e)),
        }
        file.lock().map_err(|e| MachineError::io("lock", &path, e))?;
        Ok(file)
    }
}

/// Writes a file aside and renames it, so that a reader finds the old or the new.
pub(crate) fn replace(path: &Path, bytes: &[u8], mode: u32) -> Result<(), MachineError> {
    use std::io::Write;
    let aside = path.with_extension("new");
    let opened = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(&aside);
    let mut file = opened.map_err(|e| MachineError::io("create", &aside, e))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|e| MachineError::io("write", &aside, e))?;
    fs::rename(&aside, path).map_err(|e| MachineError::io("rename", &aside, e))
}

/// The end of a log: its last `lines` lines, not more than 64 KiB, lossily decoded.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    use std::io::{Read, Seek, SeekFrom};
    const MOST: u64 = 64 << 10;
    let mut bytes = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let length = file.metadata().map_or(0, |m| m.len());
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(MOST)));
        let _ = file.take(MOST).read_to_end(&mut bytes);
    }
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().map(str::trim_end).filter(|l| !l.is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines_of_whatever_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        assert_eq!(tail(&log, 3), "");
        fs::write(&log, b"one\r\ntwo\r\n\r\n\xffthree\n").unwrap();
        assert_eq!(tail(&log, 2), "two\n\u{fffd}three");
        fs::write(&log, "x".repeat(200_000)).unwrap();
        assert_eq!(tail(&log, 1).len(), 64 << 10);
    }

    #[test]
    fn replacing_leaves_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("machine.json");
        replace(&path, b"a", 0o600).unwrap();
        replace(&path, b"b", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"b");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
