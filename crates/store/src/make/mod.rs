//! Making images and kernels. Needs no KVM and no controller, only the tools of a Debian machine.

mod apt;
mod debian;
mod error;
mod ext4;
mod folder;
mod import;
mod kernel;
mod layers;
mod modules;
mod sources;
mod tool;
mod unpack;

pub use debian::{DebianImage, debian_image};
pub use error::MakeError;
pub use folder::{FolderImage, folder_image};
pub use import::{TarImage, import_tar};
pub use kernel::{
    GUEST_MODULES, KernelPackage, KernelSource, ModuleArchive, fetch_kernel, fetch_kernel_package,
    kernel_from_file, module_archive,
};
pub use layers::{LayeredImage, layered_image};

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forkd_protocol::names::KernelName;

/// Takes the lines that a long step has to say.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// A file system that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeImage {
    /// A raw ext4 file, sparse.
    pub path: PathBuf,
    /// How it was made: the `origin` of the image.
    pub origin: String,
    /// It was there already.
    pub cached: bool,
}

/// A kernel with its modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeKernel {
    /// The name it gets in a store.
    pub name: KernelName,
    /// bzImage or ELF.
    pub vmlinuz: PathBuf,
    /// newc archive of modules.
    pub modules: PathBuf,
    /// It was there already.
    pub cached: bool,
}

/// Where made things are kept: `FORKD_CACHE_DIR`, else `~/.cache/forkd`.
pub fn cache_dir() -> PathBuf {
    std::env::var_os("FORKD_CACHE_DIR").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/root".into())).join(".cache/forkd")
    })
}

/// Owners, devices and extended attributes can only be set by root.
fn need_root(what: &str) -> Result<(), MakeError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(MakeError::Caller(format!("{what} needs root: only root can give files their owners")))
}

/// What an interrupted run left is removed after this long; no run lasts as long.
const STALE: Duration = Duration::from_secs(6 * 3600);
const WORK_PREFIX: &str = "make-";

/// A folder for what is half done, on the file system of the result; removed when dropped.
fn work_folder(parent: &Path) -> Result<tempfile::TempDir, MakeError> {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        let ours = entry.file_name().to_string_lossy().starts_with(WORK_PREFIX);
        if ours && age.is_some_and(|age| age > STALE) {
            // Best effort: it costs space, not correctness.
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
    tempfile::Builder::new()
        .prefix(WORK_PREFIX)
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(|e| MakeError::io("create a folder in", parent, e))
}

/// The folder of a file that is to be made, made itself where it is missing.
fn folder_of(out: &Path) -> Result<PathBuf, MakeError> {
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| MakeError::io("create", parent, e))?;
    Ok(parent.to_owned())
}

/// A file to write in the folder of `out`, so that two runs do not write into one; removed when dropped.
fn file_beside(out: &Path) -> Result<tempfile::NamedTempFile, MakeError> {
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(WORK_PREFIX)
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(parent)
        .map_err(|e| MakeError::io("create a file in", parent, e))
}

/// Gives a finished file its name.
fn put_in_place(file: tempfile::NamedTempFile, out: &Path) -> Result<(), MakeError> {
    file.as_file().sync_all().map_err(|e| MakeError::io("write", file.path(), e))?;
    file.persist(out).map(drop).map_err(|e| MakeError::io("rename to", out, e.error))
}
