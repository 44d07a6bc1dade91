//! What this computer has, as found; judged elsewhere.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use forkd_protocol::error::chain;

use super::probe::Probe;
use crate::commands::default_root;
use crate::error::CliError;
use crate::machine::tools::{self, BUSYBOX, MKE2FS, MMDEBSTRAP, QEMU, SSH, SSH_KEYGEN, Tool};
use crate::machine::{Dirs, Record, available_mib, qemu_version, total_mib};

const NFT: Tool = Tool { name: "nft", package: "nftables" };
const DEPMOD: Tool = Tool { name: "depmod", package: "kmod" };
const DPKG_DEB: Tool = Tool { name: "dpkg-deb", package: "dpkg" };

/// Everything that is looked at.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// What the small guest found, or why it did not run.
    pub(crate) kvm: Result<Probe, String>,
    /// Whether this is root.
    pub(crate) root: bool,
    /// The controllers of the cgroup v2 tree; `None` where it is not mounted.
    pub(crate) cgroup: Option<Vec<String>>,
    /// Whether there is a tun device.
    pub(crate) tun: bool,
    /// Room where images and snapshots go on this computer.
    pub(crate) store_bytes: Option<u64>,
    /// Room where the machine and its disks go.
    pub(crate) machine_bytes: Option<u64>,
    /// Memory there is, and what is free of it.
    pub(crate) memory_mib: Option<(u64, u64)>,
    /// Whether the machine runs, and so has taken what it needs.
    pub(crate) machine_runs: bool,
    /// The version of QEMU, where there is one.
    pub(crate) qemu: Option<String>,
    /// Tools that are missing.
    pub(crate) missing: Vec<Missing>,
}

/// A tool that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Its name.
    pub(crate) tool: &'static str,
    /// The Debian package that has it.
    pub(crate) package: &'static str,
    /// What it is for.
    pub(crate) job: Job,
}

/// What a tool is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Running the machine.
    Machine,
    /// Making images, kernels and the machine's disk.
    Making,
    /// Networks of sandboxes that run on this computer.
    Network,
}

impl Facts {
    /// Looks; KVM has been tried.
    pub(crate) fn gather(probe: Result<Probe, CliError>) -> Self {
        let dirs = Dirs::from_env();
        let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            kvm: probe.map_err(|e| chain(&e)),
            root: rustix::process::geteuid().is_root(),
            cgroup: fs::read_to_string("/sys/fs/cgroup/cgroup.controllers")
                .ok()
                .map(|c| c.split_whitespace().map(str::to_owned).collect()),
            tun: has_tun(),
            store_bytes: free(&default_root()),
            machine_bytes: free(dirs.state()).into_iter().chain(free(dirs.cache())).min(),
            memory_mib: total_mib(&info).zip(available_mib(&info)),
            machine_runs: Record::running(&dirs).is_ok_and(|record| record.is_some()),
            qemu: qemu_version().ok(),
            missing: missing(),
        }
    }
}

fn missing() -> Vec<Missing> {
    let wanted = [
        (QEMU, Job::Machine),
        (SSH, Job::Machine),
        (SSH_KEYGEN, Job::Machine),
        (MMDEBSTRAP, Job::Making),
        (MKE2FS, Job::Making),
        (DEPMOD, Job::Making),
        (DPKG_DEB, Job::Making),
        (NFT, Job::Network),
    ];
    let mut missing: Vec<_> = wanted
        .into_iter()
        .filter(|(tool, _)| tool.find().is_err())
        .map(|(tool, job)| Missing { tool: tool.name, package: tool.package, job })
        .collect();
    if tools::static_busybox().is_err() {
        missing.push(Missing { tool: "a static busybox", package: BUSYBOX.package, job: Job::Machine });
    }
    missing
}

fn has_tun() -> bool {
    let path = Path::new("/dev/net/tun");
    let device = path.metadata().is_ok_and(|m| m.file_type().is_char_device());
    device && File::options().read(true).write(true).open(path).is_ok()
}

/// Room in the file system that a folder is, or would be, in.
fn free(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|p| p.exists())?;
    let stat = rustix::fs::statvfs(there).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
