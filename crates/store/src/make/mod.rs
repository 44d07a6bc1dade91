//! Making images and kernels. Needs no KVM and no controller, only the tools of a Debian machine.

mod apt;
mod debian;
mod error;
mod ext4;
mod import;
mod kernel;
mod modules;
mod tool;
mod unpack;

pub use debian::{DebianImage, debian_image};
pub use error::MakeError;
pub use import::{TarImage, import_tar};
pub use kernel::{
    GUEST_MODULES, KernelPackage, KernelSource, ModuleArchive, fetch_kernel, fetch_kernel_package,
    kernel_from_file, module_archive,
};

use std::path::PathBuf;

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

/// A folder for what is half done, on the file system of the result; removed when dropped.
fn work_folder(parent: &std::path::Path) -> Result<tempfile::TempDir, MakeError> {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new()
        .prefix("make-")
        .permissions(std::fs::Permissions::from_mode(0o755))
        .tempdir_in(parent)
        .map_err(|e| MakeError::io("create a folder in", parent, e))
}
