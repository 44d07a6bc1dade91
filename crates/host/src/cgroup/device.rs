//! The disk that a folder lies on, as limits of traffic name it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// A whole disk: the kernel limits no traffic of partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Device(String);

impl Device {
    /// That of a folder's file system; where there is none, why its traffic cannot be limited.
    pub(super) fn of(folder: &Path) -> Result<Self, String> {
        let found =
            fs::metadata(folder).map_err(|e| format!("{} cannot be looked at: {e}", folder.display()))?;
        let place = PathBuf::from(format!("/sys/dev/block/{}:{}", major(found.dev()), minor(found.dev())));
        let place = place.canonicalize().map_err(|_| {
            format!(
                "the file system of {} lies on no single disk (it is a tmpfs, overlay or btrfs)",
                folder.display()
            )
        })?;
        let whole = if place.join("partition").exists() { place.parent().unwrap_or(&place) } else { &place };
        let number = fs::read_to_string(whole.join("dev"));
        let number = number.map_err(|e| format!("{} has no number: {e}", whole.display()))?;
        Ok(Self(number.trim().to_owned()))
    }

    /// `MAJOR:MINOR`.
    pub(super) fn number(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_in_memory_has_no_disk() {
        let why = Device::of(Path::new("/proc")).unwrap_err();
        assert!(why.contains("no single disk"), "{why}");
        assert!(Device::of(Path::new("/nowhere at all")).is_err());
    }
}
