//! forkd's own programs: the ones that run in the machine are the ones that lie here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::error::MachineError;

/// What has to lie together.
pub(crate) const PROGRAMS: [&str; 3] = ["forkd", "forkd-vmm", "forkd-agent"];

/// The folder of the programs, and what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Programs {
    folder: PathBuf,
    /// Name to hash of the content.
    pub(crate) hashes: BTreeMap<String, String>,
}

impl Programs {
    /// Those in `FORKD_LIBEXEC`, else beside this program.
    pub(crate) fn here() -> Result<Self, MachineError> {
        Self::in_folder(&folder()?)
    }

    pub(super) fn in_folder(folder: &Path) -> Result<Self, MachineError> {
        let mut hashes = BTreeMap::new();
        for name in PROGRAMS {
            let path = folder.join(name);
            if !path.is_file() {
                return Err(MachineError::ProgramMissing { name, folder: folder.to_owned() });
            }
            hashes.insert(name.to_owned(), hash(&path)?);
        }
        Ok(Self { folder: folder.to_owned(), hashes })
    }

    /// Where one of them lies.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// How large some of them are together.
    pub(crate) fn bytes(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|name| self.path(name).metadata().ok()).map(|m| m.len()).sum()
    }

    /// Those that differ from the ones that `other` lists.
    pub(crate) fn changed_since(&self, other: &BTreeMap<String, String>) -> Vec<&str> {
        let changed = self.hashes.iter().filter(|(name, hash)| other.get(*name) != Some(hash));
        changed.map(|(name, _)| name.as_str()).collect()
    }
}

/// Where forkd's programs are looked for.
pub(crate) fn folder() -> Result<PathBuf, MachineError> {
    if let Some(folder) = std::env::var_os("FORKD_LIBEXEC").filter(|f| !f.is_empty()) {
        return Ok(PathBuf::from(folder));
    }
    let own = std::env::current_exe().map_err(|e| MachineError::io("find", "/proc/self/exe", e))?;
    Ok(own.parent().map(Path::to_owned).unwrap_or_default())
}

fn hash(path: &Path) -> Result<String, MachineError> {
    let mut hasher = blake3::Hasher::new();
    let read = std::fs::File::open(path).and_then(|file| hasher.update_reader(file).map(drop));
    read.map_err(|e| MachineError::io("read", path, e))?;
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_changed_program_is_noticed_and_a_missing_one_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in PROGRAMS {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let before = Programs::in_folder(dir.path()).unwrap();
        assert!(before.changed_since(&before.hashes).is_empty());
        fs::write(dir.path().join("forkd-vmm"), "newer").unwrap();
        let after = Programs::in_folder(dir.path()).unwrap();
        assert_eq!(after.changed_since(&before.hashes), ["forkd-vmm"]);
        assert_eq!(after.changed_since(&BTreeMap::new()).len(), 3);
        assert_eq!(after.bytes(&["forkd", "forkd-vmm"]), 10);
        fs::remove_file(dir.path().join("forkd-agent")).unwrap();
        let missing = Programs::in_folder(dir.path());
        assert!(matches!(missing, Err(MachineError::ProgramMissing { name: "forkd-agent", .. })));
    }
}
