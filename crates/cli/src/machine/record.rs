//! The note about the running machine.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::dirs::{self, Dirs};
use super::error::MachineError;
use super::process::Identity;

/// Raised when a field changes its meaning.
const VERSION: u32 = 1;

/// What a machine is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Where the API is reached on this computer.
    pub(crate) api_port: u16,
    /// Where its sshd is reached on this computer.
    pub(crate) ssh_port: u16,
    /// Where published clients reach sandboxes, here and in it: the first port and the last.
    #[serde(default)]
    pub(crate) guest_ports: Option<(u16, u16)>,
    /// Its memory.
    pub(crate) memory_mib: u64,
    /// Its processors.
    pub(crate) cpus: usize,
    /// What emulates it.
    pub(crate) qemu: String,
    /// Its kernel.
    pub(crate) kernel: String,
    /// Its root disk.
    pub(crate) root_disk: PathBuf,
    /// The programs in it, and their hashes.
    pub(crate) programs: BTreeMap<String, String>,
}

/// A machine that was started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    /// Its QEMU.
    pub(crate) process: Identity,
    /// When it was started.
    pub(crate) started_at_unix: u64,
    /// What it is made of.
    #[serde(flatten)]
    pub(crate) plan: Plan,
}

impl Record {
    /// Of a machine that was started just now.
    pub(crate) fn new(plan: Plan, process: Identity) -> Self {
        Self { version: VERSION, process, started_at_unix: crate::ui::now_unix(), plan }
    }

    /// The machine that runs, if one does.
    pub(crate) fn running(dirs: &Dirs) -> Result<Option<Self>, MachineError> {
        Ok(Self::load(dirs)?.filter(|r| r.process.is_alive()))
    }

    /// The note, whether or not what it speaks of still runs.
    pub(crate) fn load(dirs: &Dirs) -> Result<Option<Self>, MachineError> {
        let path = dirs.record();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(MachineError::io("read", path, e)),
        };
        let unknown = |why: String| MachineError::Record { path: path.clone(), why };
        let record: Self = serde_json::from_slice(&bytes).map_err(|e| unknown(e.to_string()))?;
        if record.version != VERSION {
            return Err(unknown(format!("it has version {}, this forkd writes {VERSION}", record.version)));
        }
        Ok(Some(record))
    }

    /// Writes the note.
    pub(crate) fn save(&self, dirs: &Dirs) -> Result<(), MachineError> {
        let path = dirs.record();
        let bytes = serde_json::to_vec_pretty(self)
            .map_err(|e| MachineError::io("write", &path, io::Error::from(e)))?;
        dirs::replace(&path, &bytes, 0o600)
    }

    /// Removes the note.
    pub(crate) fn forget(dirs: &Dirs) -> Result<(), MachineError> {
        match fs::remove_file(dirs.record()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(MachineError::io("remove", dirs.record(), e))
            }
            _ => Ok(()),
        }
    }

    /// Where its API answers.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.plan.api_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pid: u32) -> Record {
        let plan = Plan {
            api_port: 8889,
            ssh_port: 40022,
            guest_ports: Some((20000, 20031)),
            memory_mib: 6144,
            cpus: 2,
            qemu: "10.0.2".into(),
            kernel: "6.12".into(),
            root_disk: "/cache/root.ext4".into(),
            programs: BTreeMap::from([("forkd".into(), "ab".into())]),
        };
        Record::new(plan, Identity::of(pid).unwrap())
    }

    #[test]
    fn a_note_is_read_as_written_and_believed_only_while_the_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::new(dir.path().into(), dir.path().into());
        assert!(Record::load(&dirs).unwrap().is_none());
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let written = record(child.id());
        written.save(&dirs).unwrap();
        assert_eq!(Record::running(&dirs).unwrap().as_ref(), Some(&written));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(Record::running(&dirs).unwrap().is_none());
        assert_eq!(Record::load(&dirs).unwrap(), Some(written));
        Record::forget(&dirs).unwrap();
        Record::forget(&dirs).unwrap();
        assert!(Record::load(&dirs).unwrap().is_none());
    }

    #[test]
    fn a_note_of_another_version_or_no_note_at_all_is_said_to_be_so() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::new(dir.path().into(), dir.path().into());
        fs::write(dirs.record(), b"{").unwrap();
        assert!(matches!(Record::load(&dirs), Err(MachineError::Record { .. })));
        let mut old = record(std::process::id());
        old.version = 0;
        old.save(&dirs).unwrap();
        assert!(matches!(Record::load(&dirs), Err(MachineError::Record { .. })));
    }
}
