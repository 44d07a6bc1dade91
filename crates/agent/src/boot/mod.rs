//! From the kernel's first instruction of user code to a guest whose root is the image.
//!
//! Everything happens in one process: nothing of the image is executed, so an image needs no shell, no init and no
//! particular C library.

mod modules;
mod mounts;

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use forkd_protocol::guest::network::GuestNetwork;
use nix::sys::stat::{Mode, umask};
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::{identity, log, network, sys, users};

/// Device of the image, where the kernel's command line names no other.
const DEFAULT_ROOT: &str = "/dev/vda";
const ROOT_BOUND: Duration = Duration::from_secs(30);
/// Descriptors of a process: as many as it asks for, but few enough for programs that walk through all of them.
const OPEN_FILES: u64 = 65_536;
const OPEN_FILES_MOST: u64 = 1_048_576;

/// A step of booting that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {source}")]
pub(crate) struct BootError {
    what: String,
    source: io::Error,
}

/// Names what was being done when an error came.
trait While<T> {
    fn during(self, what: impl Into<String>) -> Result<T, BootError>;
}

impl<T, E: Into<io::Error>> While<T> for Result<T, E> {
    fn during(self, what: impl Into<String>) -> Result<T, BootError> {
        self.map_err(|source| BootError { what: what.into(), source: source.into() })
    }
}

/// Boots. Afterwards the process sees the image as its root and may serve.
pub(crate) fn boot() -> Result<(), BootError> {
    umask(Mode::from_bits_truncate(0o022));
    mounts::early()?;
    log::use_kernel_log();
    let root = root_device();
    let missing = modules::load_all();
    if let Err(error) = mounts::wait_for(&root, ROOT_BOUND) {
        for module in &missing {
            log::warn(format_args!("module not loaded: {module}"));
        }
        return Err(error);
    }
    mounts::switch_root(&root)?;
    mounts::late()?;
    identity::prepare_boot_id().during("boot id")?;
    sys::loopback_up().during("loopback interface")?;
    names()?;
    network()?;
    if let Err(e) = users::ensure_default() {
        // Images may be read-only in places; then calls that name no user are root's.
        log::warn(format_args!("no default user: {e}"));
    }
    let files = Rlimit { current: Some(OPEN_FILES), maximum: Some(OPEN_FILES_MOST) };
    setrlimit(Resource::Nofile, files).during("limit of open files")?;
    // The device answers when the host does; nothing here waits for it.
    std::thread::spawn(credit_hardware_entropy);
    log::info(format_args!("root is {root}"));
    Ok(())
}

/// Ends the machine, so that the monitor sees it.
pub(crate) fn power_off() {
    rustix::fs::sync();
    // With `reboot=k panic=-1` a restart is what a monitor sees at once.
    let error = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_AUTOBOOT).err();
    log::fatal(format_args!("cannot restart: {error:?}"));
}

fn root_device() -> String {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let named = line.split_whitespace().find_map(|word| word.strip_prefix("forkd.root="));
    named.unwrap_or(DEFAULT_ROOT).to_owned()
}

/// Host name and hosts file; an image's own words are kept.
fn names() -> Result<(), BootError> {
    let own = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let name = own.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let name = name.filter(|name| name.len() <= 64).unwrap_or("forkd");
    nix::unistd::sethostname(name).during("host name")?;
    if !Path::new("/etc/hosts").exists() {
        // An image may have a link to nowhere or no /etc at all; then it lives without.
        let written = fs::create_dir_all("/etc")
            .and_then(|()| fs::write("/etc/hosts", identity::with_own_name("", name)));
        if let Err(e) = written {
            log::warn(format_args!("/etc/hosts: {e}"));
        }
    }
    Ok(())
}

/// The network device, where there is one. An image whose /etc cannot be written to goes without names.
fn network() -> Result<(), BootError> {
    let own = GuestNetwork::default();
    if network::set_up(&own).during("network device")?
        && let Err(e) = network::name_servers(&own)
    {
        log::warn(format_args!("/etc/resolv.conf: {e}"));
    }
    Ok(())
}

/// The first random numbers of the guest do not wait for interrupts to collect some.
fn credit_hardware_entropy() {
    let credited = || -> io::Result<()> {
        let mut bytes = [0; 64];
        io::Read::read_exact(&mut fs::File::open("/dev/hwrng")?, &mut bytes)?;
        sys::add_entropy(&fs::File::open("/dev/urandom")?, &bytes)
    };
    if let Err(e) = credited() {
        log::info(format_args!("no hardware random numbers: {e}"));
    }
}
