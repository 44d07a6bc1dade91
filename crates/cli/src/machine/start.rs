//! Starting the machine, or finding the one that runs.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::thread;

use super::console::Console;
use super::dirs::Dirs;
use super::error::MachineError;
use super::process::Identity;
use super::programs::Programs;
use super::record::{Plan, Record};
use super::tools::{self, MKE2FS, QEMU, SSH, SSH_KEYGEN};
use super::wait::{Until, answers, wait};
use super::{disks, initrd, ports, qemu, ssh, stop, swap};
use crate::ui::Ui;

/// How often a machine is booted whose processors stand still: QEMU loses a processor's timer now and then where the
/// computer is busy, and Linux does not get over that.
const BOOTS: u32 = 3;
const DEFAULT_API_PORT: u16 = 8889;
const DEFAULT_DATA_GIB: u64 = 32;
const DEFAULT_MEMORY_MIB: u64 = 6144;
/// With less the kernel, a controller and one sandbox do not fit.
const LEAST_MEMORY_MIB: u64 = 1024;

/// Sending more than this over an interpreted ssh takes longer than starting the machine again.
const MOST_TO_SWAP: u64 = 48 << 20;

/// What a machine is to be where it has to be started.
#[derive(Debug, Clone)]
pub(crate) struct StartOptions {
    /// Its memory; by default 6 GiB, or half of this computer's where that is less.
    pub(crate) memory_mib: Option<u64>,
    /// Where its API is reached.
    pub(crate) api_port: u16,
    /// The size of its data disk when it is made.
    pub(crate) data_gib: u64,
    /// What to wait for.
    pub(crate) until: Until,
}

impl StartOptions {
    /// `FORKD_MACHINE_MEMORY_MIB`, `FORKD_MACHINE_PORT` and `FORKD_MACHINE_DATA_GIB`, where they are set.
    pub(crate) fn from_env() -> Self {
        Self {
            memory_mib: number("FORKD_MACHINE_MEMORY_MIB"),
            api_port: number("FORKD_MACHINE_PORT").unwrap_or(DEFAULT_API_PORT),
            data_gib: number("FORKD_MACHINE_DATA_GIB").unwrap_or(DEFAULT_DATA_GIB),
            until: Until::Answers,
        }
    }
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Where a controller answers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Endpoint {
    /// The URL of its API.
    pub(crate) url: String,
}

/// Makes sure that a machine with the present programs runs and its controller answers. Blocks; the first
/// time takes minutes. Two at once: the second waits for the first and finds its machine.
pub(crate) fn start(ui: &Ui, options: &StartOptions) -> Result<Endpoint, MachineError> {
    let dirs = Dirs::from_env();
    dirs.create()?;
    let _lock = dirs.lock(ui)?;
    let programs = Programs::here()?;
    let record = match Record::running(&dirs)? {
        Some(record) => refresh(ui, &dirs, record, &programs, options)?,
        None => boot(ui, &dirs, &programs, options)?,
    };
    Ok(Endpoint { url: record.url() })
}

/// Brings a machine that runs up to date.
fn refresh(
    ui: &Ui,
    dirs: &Dirs,
    record: Record,
    programs: &Programs,
    options: &StartOptions,
) -> Result<Record, MachineError> {
    let changed = programs.changed_since(&record.plan.programs);
    if changed.is_empty() {
        if options.until == Until::Answers && !answers(record.plan.api_port) {
            let step = ui.step("waiting for the machine");
            await_started(dirs, &record, options.until, &step)?;
            step.done("its controller answers");
        }
        return Ok(record);
    }
    ui.note(&format!(
        "the machine runs other versions of {}: they are replaced, and sandboxes that run in it are lost",
        changed.join(", ")
    ));
    if programs.bytes(&changed) <= MOST_TO_SWAP {
        match swap::swap(ui, dirs, &record, programs, options.until) {
            Ok(record) => return Ok(record),
            Err(e) => ui.note(&format!("that did not work ({e}); starting the machine again")),
        }
    }
    stop::stop_running(ui, dirs, &record)?;
    boot(ui, dirs, programs, options)
}

fn boot(ui: &Ui, dirs: &Dirs, programs: &Programs, options: &StartOptions) -> Result<Record, MachineError> {
    // Before minutes are spent on what cannot work.
    for tool in [QEMU, SSH, SSH_KEYGEN, MKE2FS] {
        tool.find()?;
    }
    let busybox = tools::static_busybox()?;
    end_orphan(dirs)?;
    let api_port = ports::want(options.api_port)?;
    let guest_ports = ports::for_guests(api_port);
    let step = ui.step("preparing the machine");
    let (package, modules) = initrd::kernel(dirs, &mut |line| step.note(line))?;
    let root_disk = disks::root_disk(dirs, &mut |line| step.note(line))?;
    let data_disk = disks::data_disk(dirs, options.data_gib)?;
    ssh::make_keys(dirs)?;
    let image = dirs.file("initrd");
    let (host_key, client_key) = (ssh::host_key(dirs), ssh::public(&ssh::client_key(dirs)));
    let parts = initrd::Parts {
        modules: &modules,
        busybox: &busybox,
        programs,
        host_key: &host_key,
        authorized_key: &client_key,
        owner_token: &ssh::owner_token(dirs)?,
        guest_ports: &guest_ports.map_or_else(|| "off".to_owned(), |(first, last)| format!("{first}-{last}")),
    };
    initrd::write(&image, &parts)?;
    step.done("");

    let last = Record::load(dirs).ok().flatten().map(|r| r.plan.ssh_port);
    let plan = Plan {
        api_port,
        ssh_port: ports::any(last, api_port)?,
        guest_ports,
        memory_mib: memory(options.memory_mib),
        cpus: thread::available_parallelism().map_or(1, usize::from),
        qemu: qemu::version()?,
        kernel: package.release.clone(),
        root_disk,
        programs: programs.hashes.clone(),
    };
    let files = BootFiles { kernel: &package.vmlinuz, image: &image, data_disk: &data_disk };
    let mut attempts = 1..=BOOTS;
    loop {
        let last = attempts.next() == Some(BOOTS);
        match boot_once(ui, dirs, plan.clone(), &files, options.until) {
            Err(MachineError::Stalled { doing }) if !last => {
                ui.note(&format!(
                    "a processor of the machine stood still while it was {doing}; booting it again"
                ));
                end_orphan(dirs)?;
            }
            booted => return booted,
        }
    }
}

/// What a machine boots from.
struct BootFiles<'a> {
    kernel: &'a std::path::Path,
    image: &'a std::path::Path,
    data_disk: &'a std::path::Path,
}

fn boot_once(
    ui: &Ui,
    dirs: &Dirs,
    plan: Plan,
    files: &BootFiles<'_>,
    until: Until,
) -> Result<Record, MachineError> {
    let step = ui.step("booting the machine");
    let record = launch(dirs, plan, files.kernel, files.image, files.data_disk)?;
    await_started(dirs, &record, until, &step)?;
    let what = if until == Until::Answers { "its controller answers" } else { "it is up" };
    step.done(what);
    Ok(record)
}

fn launch(
    dirs: &Dirs,
    plan: Plan,
    kernel: &std::path::Path,
    image: &std::path::Path,
    data_disk: &std::path::Path,
) -> Result<Record, MachineError> {
    for log in [dirs.serial_log(), dirs.controller_log()] {
        // The machine before this one may have ended for a reason.
        let _ = fs::rename(&log, log.with_extension("log.1"));
        fs::File::create(&log).map_err(|e| MachineError::io("create", &log, e))?;
    }
    let shape = qemu::Shape {
        memory_mib: plan.memory_mib,
        cpus: plan.cpus,
        kernel,
        initrd: image,
        root_disk: &plan.root_disk,
        data_disk,
        serial_log: &dirs.serial_log(),
        controller_log: &dirs.controller_log(),
        pid_file: &pid_file(dirs),
        api_port: plan.api_port,
        ssh_port: plan.ssh_port,
        guest_ports: plan.guest_ports,
    };
    let process = qemu::start(&shape, &dirs.file("qemu.log"))?;
    let record = Record::new(plan, process);
    record.save(dirs)?;
    Ok(record)
}

fn await_started(
    dirs: &Dirs,
    record: &Record,
    until: Until,
    step: &crate::ui::Step,
) -> Result<(), MachineError> {
    let log = dirs.serial_log();
    let console = Console::from_start(&log).map_err(|e| MachineError::io("open", &log, e))?;
    wait(dirs, record, console, until, step)
}

fn pid_file(dirs: &Dirs) -> PathBuf {
    dirs.file("qemu.pid")
}

/// A forkd that was killed between starting QEMU and writing that down leaves one that nobody knows. It would
/// hold the data disk and the ports.
fn end_orphan(dirs: &Dirs) -> Result<(), MachineError> {
    let text = fs::read_to_string(pid_file(dirs)).unwrap_or_default();
    let Some(process) = text.trim().parse().ok().and_then(Identity::of) else { return Ok(()) };
    let words = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let ours = dirs.data_disk().display().to_string().replace(',', ",,");
    if !String::from_utf8_lossy(&words).contains(&format!("file={ours},")) {
        return Ok(());
    }
    let ended = match process.open() {
        Ok(Some(handle)) => handle.end(stop::KILL_GRACE),
        Ok(None) => Ok(()),
        Err(e) => Err(e),
    };
    ended.map_err(|e: io::Error| MachineError::io("end", "a QEMU that nobody knows", e))
}

/// The wish, else 6 GiB or half of what this computer has.
fn memory(wish: Option<u64>) -> u64 {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = total_mib(&info).unwrap_or(2 * DEFAULT_MEMORY_MIB);
    wish.unwrap_or_else(|| DEFAULT_MEMORY_MIB.min(total / 2)).max(LEAST_MEMORY_MIB)
}

/// Memory of this computer, as `/proc/meminfo` has it.
pub(crate) fn total_mib(meminfo: &str) -> Option<u64> {
    mib(meminfo, "MemTotal:")
}

/// What of it can be had without taking it from others.
pub(crate) fn available_mib(meminfo: &str) -> Option<u64> {
    mib(meminfo, "MemAvailable:")
}

fn mib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_bounded() {
        assert_eq!(total_mib("MemFree: 1 kB\nMemTotal:       24683596 kB\n"), Some(24105));
        assert_eq!(total_mib("nothing"), None);
        assert_eq!(available_mib("MemTotal: 9 kB\nMemAvailable: 2048 kB\n"), Some(2));
        assert_eq!(memory(Some(2048)), 2048);
        assert_eq!(memory(Some(1)), LEAST_MEMORY_MIB);
        assert!((LEAST_MEMORY_MIB..=DEFAULT_MEMORY_MIB).contains(&memory(None)));
    }
}
