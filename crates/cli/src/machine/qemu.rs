//! The emulator: which one, how it is called, how it is started.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use super::dirs;
use super::error::MachineError;
use super::process::Identity;
use super::tools::QEMU;

/// The address that QEMU's user network gives a guest; the start scripts have it too.
const GUEST: &str = "10.0.2.15";
/// Where the controller listens in the machine.
const GUEST_API: u16 = 8889;

/// Without `tsc=reliable` the kernel takes the emulated TSC for unstable and KVM has no master clock.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet tsc=reliable panic=-1";

/// Processors that never run a guest: the first alone, which the machine's first program leaves to the kernel.
///
/// QEMU (7.2 and 10.0 were read) has the other processors' XRSTOR change the first one's `hflags2`
/// (`cpu_clear_ignne`) with neither a lock nor an atomic instruction. Where that meets the change of
/// `HF2_NPT_MASK` in a VMRUN or a #VMEXIT of the first processor, the bit is as before: the host's
/// registers land in the guest's VMCB, or the guest runs on the host's memory. Seen in one fork of a hundred.
const KEPT_FROM_GUESTS: usize = 1;

/// What a machine is to be.
#[derive(Debug)]
pub(crate) struct Shape<'a> {
    pub(crate) memory_mib: u64,
    /// Processors for sandboxes and programs.
    pub(crate) cpus: usize,
    pub(crate) kernel: &'a Path,
    pub(crate) initrd: &'a Path,
    pub(crate) root_disk: &'a Path,
    pub(crate) data_disk: &'a Path,
    pub(crate) serial_log: &'a Path,
    pub(crate) controller_log: &'a Path,
    pub(crate) pid_file: &'a Path,
    pub(crate) api_port: u16,
    pub(crate) ssh_port: u16,
    /// Ports that are the same here and there: the first and the last.
    pub(crate) guest_ports: Option<(u16, u16)>,
}

/// The version of the QEMU at hand.
pub(crate) fn version() -> Result<String, MachineError> {
    let output = QEMU.run(["--version"])?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(parse_version(&said).unwrap_or("unknown").to_owned())
}

fn parse_version(said: &str) -> Option<&str> {
    said.strip_prefix("QEMU emulator version ")?.split_whitespace().next()
}

/// Starts it in the background; returns once it has its disks and ports.
pub(crate) fn start(shape: &Shape<'_>, log: &Path) -> Result<Identity, MachineError> {
    let qemu = QEMU.find()?;
    let file = File::create(log).map_err(|e| MachineError::io("create", log, e))?;
    let status = Command::new(&qemu)
        .args(arguments(shape))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .status();
    let status = status.map_err(|e| MachineError::io("run", &qemu, e))?;
    if !status.success() {
        return Err(MachineError::ToolFailed { tool: QEMU.name, tail: dirs::tail(log, 5) });
    }
    let text = fs::read_to_string(shape.pid_file).map_err(|e| MachineError::io("read", shape.pid_file, e))?;
    text.trim().parse().ok().and_then(Identity::of).ok_or_else(|| MachineError::ToolFailed {
        tool: QEMU.name,
        tail: format!("it ended at once. {}", dirs::tail(log, 5)),
    })
}

fn arguments(shape: &Shape<'_>) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(OsString::from));
    add(&["-name", "forkd-machine", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max,+svm"]);
    add(&["-smp", &(shape.cpus + KEPT_FROM_GUESTS).to_string(), "-m", &shape.memory_mib.to_string()]);
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-daemonize"]);
    add(&["-append", KERNEL_ARGUMENTS, "-serial", "chardev:serial", "-device", "virtio-serial-pci"]);
    add(&["-device", "virtserialport,chardev=controller,name=forkd.controller"]);
    add(&["-device", "virtio-blk-pci,drive=root,serial=forkd-root"]);
    add(&["-device", "virtio-blk-pci,drive=data,serial=forkd-data"]);
    add(&["-device", "virtio-rng-pci", "-device", "virtio-net-pci,netdev=net"]);
    let same =
        shape.guest_ports.into_iter().flat_map(|(first, last)| (first..=last).map(|port| (port, port)));
    let ports = [(shape.api_port, GUEST_API), (shape.ssh_port, 22)].into_iter().chain(same);
    let forwarded: String =
        ports.map(|(here, there)| format!(",hostfwd=tcp:127.0.0.1:{here}-{GUEST}:{there}")).collect();
    add(&["-netdev", &format!("user,id=net,ipv6=off{forwarded}")]);
    let mut add_path = |option: &str, before: &str, path: &Path, after: &str| {
        args.push(option.into());
        let mut value = OsString::from(before);
        // In a list of options a comma is written twice; where a path stands alone it is not.
        if before.is_empty() {
            value.push(path)
        } else {
            value.push(doubled(path))
        }
        value.push(after);
        args.push(value);
    };
    add_path("-kernel", "", shape.kernel, "");
    add_path("-initrd", "", shape.initrd, "");
    add_path("-pidfile", "", shape.pid_file, "");
    add_path("-chardev", "file,id=serial,path=", shape.serial_log, "");
    add_path("-chardev", "file,id=controller,path=", shape.controller_log, "");
    // Read-only, so that no crash can damage what all machines share.
    add_path("-drive", "id=root,if=none,format=raw,file=", shape.root_disk, ",readonly=on");
    // What is deleted inside is given back to the file system outside.
    add_path(
        "-drive",
        "id=data,if=none,format=raw,file=",
        shape.data_disk,
        ",discard=unmap,detect-zeroes=unmap",
    );
    args
}

fn doubled(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let bytes = path.as_os_str().as_bytes();
    OsString::from_vec(
        bytes.iter().flat_map(|&b| std::iter::repeat_n(b, 1 + usize::from(b == b','))).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Vec<String> {
        let shape = Shape {
            memory_mib: 6144,
            cpus: 2,
            kernel: Path::new("/c/vmlinuz"),
            initrd: Path::new("/s,1/initrd"),
            root_disk: Path::new("/c/root.ext4"),
            data_disk: Path::new("/s,1/data.raw"),
            serial_log: Path::new("/s,1/serial.log"),
            controller_log: Path::new("/s,1/controller.log"),
            pid_file: Path::new("/s,1/qemu.pid"),
            api_port: 8899,
            ssh_port: 40022,
            guest_ports: Some((20000, 20001)),
        };
        arguments(&shape).into_iter().map(|w| w.into_string().unwrap()).collect()
    }

    #[test]
    fn a_machine_has_svm_many_threads_and_nothing_that_was_not_asked_for() {
        let all = words().join(" ");
        for wanted in [
            "-accel tcg,thread=multi",
            "-cpu max,+svm",
            "-smp 3 -m 6144",
            "-nodefaults -no-user-config",
            "tsc=reliable",
            "hostfwd=tcp:127.0.0.1:8899-10.0.2.15:8889,hostfwd=tcp:127.0.0.1:40022-10.0.2.15:22",
            "hostfwd=tcp:127.0.0.1:20000-10.0.2.15:20000,hostfwd=tcp:127.0.0.1:20001-10.0.2.15:20001",
            "file=/c/root.ext4,readonly=on",
        ] {
            assert!(all.contains(wanted), "{wanted} in {all}");
        }
    }

    #[test]
    fn commas_in_paths_do_not_end_an_option() {
        let all = words();
        assert!(all.contains(&"/s,1/initrd".to_owned()));
        assert!(all.contains(&"file,id=serial,path=/s,,1/serial.log".to_owned()));
        assert!(all.iter().any(|w| w.contains("file=/s,,1/data.raw,discard=unmap")));
    }

    #[test]
    fn versions_are_read() {
        assert_eq!(parse_version("QEMU emulator version 10.0.2 (Debian 1:10)\nCopyright"), Some("10.0.2"));
        assert_eq!(parse_version("something else"), None);
    }
}
