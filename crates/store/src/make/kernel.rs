//! Debian's cloud kernel, and the modules that a guest needs of it.
//!
//! The package is fetched with the machine's own `apt-get`, but with lists, caches and sources of its own
//! below the cache folder: of the machine's apt configuration the mirror is read, and nothing is changed.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use forkd_protocol::names::KernelName;

use super::modules::{ModuleIndex, module_name};
use super::tool::Tool;
use super::{MadeKernel, MakeError, Progress, apt};
use crate::cpio::CpioWriter;

/// What a guest loads, as far as its kernel has it as a module: transport and disk, the way to its agent,
/// entropy, network, memory given back, sockets found and destroyed after a fork.
pub const GUEST_MODULES: &[&str] = &[
    "virtio_mmio",
    "virtio_blk",
    "ext4",
    "vsock",
    "vmw_vsock_virtio_transport",
    "virtio_rng",
    "virtio_net",
    "virtio_balloon",
    "inet_diag",
    "tcp_diag",
    "vmgenid",
];

/// Guests run without it: the agent reseeds after a fork by itself, and not every kernel comes with the driver
/// (Debian's 6.1 does not).
const OPTIONAL_MODULES: &[&str] = &["vmgenid"];

/// The largest module, decompressed.
const MAX_MODULE: u64 = 256 << 20;

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

/// Where the default kernel comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KernelSource {
    /// `bookworm-backports` (6.12), or `bookworm` (6.1) where backports cannot be had.
    #[default]
    Newest,
    /// `bookworm` (6.1).
    Stable,
}

impl KernelSource {
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Newest => &["bookworm-backports", "bookworm"],
            Self::Stable => &["bookworm"],
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Stable => "stable",
        }
    }
}

/// What became of a list of wanted modules.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleArchive {
    /// Absolute paths in the archive, in the order in which they have to be loaded.
    pub order: Vec<String>,
    /// Wanted, but built into the kernel.
    pub builtin: Vec<String>,
    /// Wanted, but unknown to this kernel.
    pub missing: Vec<String>,
}

/// Debian's cloud kernel, unpacked in the cache; a second call finds the first one's.
pub fn fetch_kernel_package(
    source: KernelSource,
    cache: &Path,
    progress: Progress<'_>,
) -> Result<KernelPackage, MakeError> {
    let kernels = cache.join("kernels");
    // A small file remembers which release a source led to, so that a second call asks no server.
    let pointer = kernels.join(source.label());
    if let Ok(release) = fs::read_to_string(&pointer)
        && let Ok(package) = find_package(&kernels.join(release.trim()))
    {
        return Ok(package);
    }
    fs::create_dir_all(&kernels).map_err(|e| MakeError::io("create", &kernels, e))?;
    let work = tempfile::Builder::new()
        .prefix("fetch-")
        .tempdir_in(&kernels)
        .map_err(|e| MakeError::io("create a folder in", &kernels, e))?;
    let mut last = None;
    for suite in source.suites() {
        match fetch_from(suite, work.path(), &kernels, progress) {
            Ok(package) => {
                fs::write(&pointer, &package.release).map_err(|e| MakeError::io("write", &pointer, e))?;
                return Ok(package);
            }
            Err(missing @ (MakeError::ToolMissing { .. } | MakeError::NoMirror)) => return Err(missing),
            Err(error) => {
                progress(&format!("no kernel from {suite}: {error}"));
                last = Some(error);
            }
        }
    }
    Err(last.unwrap_or_else(|| MakeError::Caller("no suite to take a kernel from".to_owned())))
}

fn fetch_from(
    suite: &str,
    work: &Path,
    kernels: &Path,
    progress: Progress<'_>,
) -> Result<KernelPackage, MakeError> {
    progress(&format!("asking Debian's {suite} for its cloud kernel"));
    let apt = apt::PrivateApt::new(&work.join(suite), suite)?;
    apt.update()?;
    let name = apt.dependency("linux-image-cloud-amd64", "linux-image-")?;
    progress(&format!("downloading {name}"));
    let deb = apt.download(&name)?;
    progress(&format!("unpacking {name}"));
    let unpacked = work.join(suite).join("unpacked");
    Tool::new("dpkg-deb", "dpkg").arg("-x").args([&deb, &unpacked]).run(&mut |_| {})?;
    adopt_package(&unpacked, kernels)
}

/// Indexes the modules of an unpacked package and moves it to `kernels/<release>`.
fn adopt_package(unpacked: &Path, kernels: &Path) -> Result<KernelPackage, MakeError> {
    let package = find_package(unpacked)?;
    if !package.modules_dir.join("modules.dep").exists()
        && let Some(base) = package.modules_dir.ancestors().nth(3)
    {
        // The package runs depmod when it is installed, which it is not here.
        Tool::new("depmod", "kmod").arg("-b").arg(base).arg(&package.release).run(&mut |_| {})?;
    }
    let home = kernels.join(&package.release);
    if home.exists() {
        fs::remove_dir_all(&home).map_err(|e| MakeError::io("remove", &home, e))?;
    }
    fs::rename(unpacked, &home).map_err(|e| MakeError::io("rename", unpacked, e))?;
    find_package(&home)
}

/// Finds kernel and modules in an unpacked package, also where `/lib` has moved below `/usr`.
fn find_package(root: &Path) -> Result<KernelPackage, MakeError> {
    for modules in [root.join("lib/modules"), root.join("usr/lib/modules")] {
        for entry in fs::read_dir(&modules).into_iter().flatten().flatten() {
            let release = entry.file_name().to_string_lossy().into_owned();
            let vmlinuz = root.join(format!("boot/vmlinuz-{release}"));
            if vmlinuz.is_file() {
                return Ok(KernelPackage { release, vmlinuz, modules_dir: entry.path() });
            }
        }
    }
    Err(MakeError::KernelUnfit { release: root.display().to_string(), missing: "boot/vmlinuz-*".to_owned() })
}

/// Writes a newc archive of the wanted modules and all they depend on, decompressed, and the file
/// `/modules.order.forkd` that lists them in load order, one absolute path a line.
pub fn module_archive(
    package: &KernelPackage,
    wanted: &[&str],
    out: &Path,
) -> Result<ModuleArchive, MakeError> {
    let load = ModuleIndex::read(&package.modules_dir)?.resolve(wanted);
    let failed = |e: io::Error| MakeError::io("write", out, e);
    let mut archive = CpioWriter::new(BufWriter::new(File::create(out).map_err(failed)?));
    archive.folder("lib").map_err(failed)?;
    archive.folder("lib/modules").map_err(failed)?;
    let mut order = Vec::new();
    for file in &load.files {
        let content = decompressed(&package.modules_dir.join(file))?;
        let name = format!("lib/modules/{}.ko", module_name(file));
        archive.file(&name, 0o644, &content).map_err(failed)?;
        order.push(format!("/{name}"));
    }
    let list: String = order.iter().flat_map(|path| [path.as_str(), "\n"]).collect();
    archive.file("modules.order.forkd", 0o644, list.as_bytes()).map_err(failed)?;
    archive.finish().and_then(|mut out| out.flush()).map_err(failed)?;
    Ok(ModuleArchive { order, builtin: load.builtin, missing: load.missing })
}

fn decompressed(module: &Path) -> Result<Vec<u8>, MakeError> {
    let failed = |e: io::Error| MakeError::io("read", module, e);
    let file = BufReader::new(File::open(module).map_err(failed)?);
    let reader: Box<dyn Read> = match module.extension().and_then(|e| e.to_str()) {
        Some("xz") => Box::new(xz2::bufread::XzDecoder::new(file)),
        Some("zst") => Box::new(zstd::stream::read::Decoder::with_buffer(file).map_err(failed)?),
        _ => Box::new(file),
    };
    let mut content = Vec::new();
    reader.take(MAX_MODULE).read_to_end(&mut content).map_err(failed)?;
    Ok(content)
}

/// The default guest kernel with its modules, fetched once.
pub fn fetch_kernel(
    source: KernelSource,
    cache: &Path,
    progress: Progress<'_>,
) -> Result<MadeKernel, MakeError> {
    let package = fetch_kernel_package(source, cache, progress)?;
    kernel_of(&package, cache)
}

/// A kernel that the user has: an image, and the folder `lib/modules/<release>` that belongs to it.
/// Without the folder everything that a guest needs must be built in.
pub fn kernel_from_file(
    vmlinuz: &Path,
    modules_dir: Option<&Path>,
    cache: &Path,
) -> Result<MadeKernel, MakeError> {
    let stem = |path: &Path| path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let vmlinuz = vmlinuz.to_owned();
    if let Some(folder) = modules_dir {
        let release = stem(folder);
        return kernel_of(&KernelPackage { release, vmlinuz, modules_dir: folder.to_owned() }, cache);
    }
    let release = stem(&vmlinuz);
    let name = kernel_name(release.strip_prefix("vmlinuz-").unwrap_or(&release))?;
    let modules = archive_path(cache, &name)?;
    let failed = |e: io::Error| MakeError::io("write", &modules, e);
    let mut archive = CpioWriter::new(File::create(&modules).map_err(failed)?);
    archive.file("modules.order.forkd", 0o644, b"").map_err(failed)?;
    archive.finish().map_err(failed)?;
    Ok(MadeKernel { name, vmlinuz, modules, cached: false })
}

fn kernel_of(package: &KernelPackage, cache: &Path) -> Result<MadeKernel, MakeError> {
    let name = kernel_name(&package.release)?;
    let modules = archive_path(cache, &name)?;
    if modules.exists() {
        return Ok(MadeKernel { name, vmlinuz: package.vmlinuz.clone(), modules, cached: true });
    }
    let aside = super::file_beside(&modules)?;
    let archive = module_archive(package, GUEST_MODULES, aside.path())?;
    let lacking: Vec<_> =
        archive.missing.iter().filter(|m| !OPTIONAL_MODULES.contains(&m.as_str())).cloned().collect();
    if !lacking.is_empty() {
        return Err(MakeError::KernelUnfit { release: package.release.clone(), missing: lacking.join(", ") });
    }
    super::put_in_place(aside, &modules)?;
    Ok(MadeKernel { name, vmlinuz: package.vmlinuz.clone(), modules, cached: false })
}

/// The list of wanted modules is part of the name, so that a newer forkd makes a new archive.
fn archive_path(cache: &Path, name: &KernelName) -> Result<PathBuf, MakeError> {
    let folder = cache.join("modules");
    fs::create_dir_all(&folder).map_err(|e| MakeError::io("create", &folder, e))?;
    let list = blake3::hash(GUEST_MODULES.join(" ").as_bytes()).to_hex();
    Ok(folder.join(format!("{name}-{}.cpio", &list[..12])))
}

fn kernel_name(release: &str) -> Result<KernelName, MakeError> {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
    let name: String = release.chars().map(allowed).collect();
    name.parse().map_err(|e| MakeError::Caller(format!("a kernel cannot be named after its file: {e}")))
}
