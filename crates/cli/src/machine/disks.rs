//! The machine's disks: a root disk that nothing ever changes, and a data disk that stays.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::PathBuf;

use forkd_store::make::{DebianImage, debian_image};

use super::dirs::Dirs;
use super::error::MachineError;
use super::tools::MKE2FS;

/// On top of Debian's `minbase`. What is particular to forkd comes with the ramdisk, so that this list is
/// all that decides whether the disk has to be made anew.
const PACKAGES: [&str; 11] = [
    "busybox-static",
    "ca-certificates",
    "e2fsprogs",
    "iproute2",
    "kmod",
    "nftables",
    "openssh-server",
    "procps",
    "python3",
    "python3-numpy",
    "zstd",
];

const ROOT_BYTES: u64 = 1 << 30;

fn recipe(dirs: &Dirs) -> DebianImage {
    DebianImage {
        suite: "bookworm".to_owned(),
        packages: PACKAGES.map(str::to_owned).to_vec(),
        size_bytes: ROOT_BYTES,
        cache: dirs.cache().to_owned(),
    }
}

/// The root disk, made on first use.
pub(crate) fn root_disk(dirs: &Dirs, say: &mut dyn FnMut(&str)) -> Result<PathBuf, MachineError> {
    let made = debian_image(&recipe(dirs), say);
    made.map(|image| image.path).map_err(|source| MachineError::Make { what: "the disk", source })
}

/// Makes the data disk where there is none. It is sparse: it takes what is written to it.
pub(crate) fn data_disk(dirs: &Dirs, gib: u64) -> Result<PathBuf, MachineError> {
    let path = dirs.data_disk();
    if path.exists() {
        return Ok(path);
    }
    let aside = path.with_extension("new");
    let made = File::create(&aside).and_then(|file| file.set_len(gib << 30));
    made.map_err(|e| MachineError::io("create", &aside, e))?;
    let mut args: Vec<OsString> =
        ["-q", "-t", "ext4", "-m", "0", "-L", "forkd-data", "-E", "lazy_itable_init=1,lazy_journal_init=1"]
            .map(OsString::from)
            .to_vec();
    args.push(aside.clone().into());
    MKE2FS.run(args)?;
    fs::rename(&aside, &path).map_err(|e| MachineError::io("rename", &aside, e))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_data_disk_is_made_once_and_takes_little() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::new(dir.path().into(), dir.path().into());
        let path = data_disk(&dirs, 32).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 32 << 30);
        assert!(meta.blocks() * 512 < 64 << 20, "{} blocks", meta.blocks());
        assert_eq!(data_disk(&dirs, 1).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), meta.ino());
    }

    #[test]
    fn the_recipe_lists_packages_once_and_in_order() {
        let packages = recipe(&Dirs::new("/s".into(), "/c".into())).packages;
        let mut sorted = packages.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(packages, sorted, "an order that means nothing must not make another disk");
    }
}
