//! Debian's cloud kernel and the modules that a guest needs of it.

use std::path::{Path, PathBuf};

use super::{MadeKernel, MakeError, Progress};

/// What a guest loads, as far as its kernel has it as a module.
pub const GUEST_MODULES: &[&str] = &[];

/// A kernel package, unpacked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPackage {
    /// Such as `6.12.95+deb12-cloud-amd64`.
    pub release: String,
    /// The kernel image.
    pub vmlinuz: PathBuf,
    /// `lib/modules/<release>`, with `modules.dep`.
    pub modules_dir: PathBuf,
}

/// What became of a list of wanted modules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleArchive {
    /// Paths in the archive, in the order in which they have to be loaded.
    pub order: Vec<String>,
    /// Wanted, but built into the kernel.
    pub builtin: Vec<String>,
    /// Wanted, but unknown to this kernel.
    pub missing: Vec<String>,
}

/// The newest of Debian's cloud kernels for this machine's suite, unpacked in the cache.
pub fn fetch_kernel_package(cache: &Path, progress: Progress<'_>) -> Result<KernelPackage, MakeError> {
    let _ = (cache, progress);
    todo!()
}

/// Writes a newc archive of the wanted modules and all they depend on, decompressed, and the file
/// `modules.order.forkd` that lists them in load order.
pub fn module_archive(
    package: &KernelPackage,
    wanted: &[&str],
    out: &Path,
) -> Result<ModuleArchive, MakeError> {
    let _ = (package, wanted, out);
    todo!()
}

/// The default guest kernel, fetched once.
pub fn fetch_kernel(cache: &Path, progress: Progress<'_>) -> Result<MadeKernel, MakeError> {
    let _ = (cache, progress);
    todo!()
}

/// A kernel that the user has: an image, and the folder `lib/modules/<release>` that belongs to it.
/// Without the folder everything a guest needs must be built in.
pub fn kernel_from_file(
    vmlinuz: &Path,
    modules_dir: Option<&Path>,
    cache: &Path,
) -> Result<MadeKernel, MakeError> {
    let _ = (vmlinuz, modules_dir, cache);
    todo!()
}
