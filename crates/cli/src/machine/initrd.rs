//! The machine's kernel, and the ramdisk it starts with: modules, a busybox, the first program, and what is
//! new with every start (forkd's programs, keys, scripts).

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use forkd_store::cpio::CpioWriter;
use forkd_store::make::{KernelPackage, KernelSource, MakeError, fetch_kernel_package, module_archive};

use super::dirs::Dirs;
use super::error::MachineError;
use super::programs::{PROGRAMS, Programs};

/// Without these there is no machine.
const REQUIRED: [&str; 18] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "kvm_amd",
    "tun",
    "veth",
    "bridge",
    "overlay",
    "nf_tables",
    "nft_chain_nat",
    "nft_nat",
    "nft_masq",
    "nft_ct",
    "nft_reject_inet",
    "nft_connlimit",
    "nf_conntrack_netlink",
    "sch_tbf",
];

/// What a rule set or a sandbox may use beside; a kernel may lack some.
const WELCOME: [&str; 14] = [
    "virtio_rng",
    "nft_redir",
    "nft_limit",
    "nft_log",
    "nft_fib_inet",
    "nft_numgen",
    "nft_quota",
    "nft_hash",
    "nft_socket",
    "loop",
    "inet_diag",
    "tcp_diag",
    "sch_ingress",
    "act_mirred",
];

macro_rules! packaged {
    ($name:literal) => {
        include_bytes!(concat!("../../../../packaging/machine/", $name))
    };
}

/// Path below the root disk, mode, content.
const SCRIPTS: [(&str, u32, &[u8]); 7] = [
    ("etc/inittab", 0o644, packaged!("inittab")),
    ("etc/forkd-machine/boot", 0o755, packaged!("boot")),
    ("etc/forkd-machine/controller", 0o755, packaged!("controller")),
    ("etc/forkd-machine/stop-forkd", 0o755, packaged!("stop-forkd")),
    ("etc/forkd-machine/halt", 0o755, packaged!("halt")),
    ("etc/forkd-machine/sshd_config", 0o644, packaged!("sshd_config")),
    ("etc/forkd-machine/nftables.conf", 0o644, packaged!("nftables.conf")),
];

/// What a ramdisk is made of.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// Archive of modules.
    pub(crate) modules: &'a Path,
    /// A static busybox.
    pub(crate) busybox: &'a Path,
    /// forkd's programs.
    pub(crate) programs: &'a Programs,
    /// The machine's own key.
    pub(crate) host_key: &'a Path,
    /// The key that may enter.
    pub(crate) authorized_key: &'a Path,
    /// What its controller knows the owner by.
    pub(crate) owner_token: &'a str,
    /// What its controller is told of ports at which published clients reach sandboxes.
    pub(crate) guest_ports: &'a str,
}

/// Debian's cloud kernel and the archive of its modules, both made on first use.
pub(crate) fn kernel(
    dirs: &Dirs,
    say: &mut dyn FnMut(&str),
) -> Result<(KernelPackage, PathBuf), MachineError> {
    let make = |source| MachineError::Make { what: "the kernel", source };
    let package = fetch_kernel_package(KernelSource::default(), dirs.cache(), say).map_err(make)?;
    let wanted: Vec<&str> = REQUIRED.into_iter().chain(WELCOME).collect();
    let list = blake3::hash(wanted.join(" ").as_bytes()).to_hex();
    let folder = dirs.cache().join("machine");
    fs::create_dir_all(&folder).map_err(|e| MachineError::io("create", &folder, e))?;
    let modules = folder.join(format!("{}-{}.cpio", package.release, &list[..12]));
    if !modules.exists() {
        // Two machines may make it at once: each writes its own, the last rename stays.
        let aside = modules.with_extension(format!("new-{}", std::process::id()));
        let archive = module_archive(&package, &wanted, &aside).map_err(make)?;
        let missing: Vec<_> =
            archive.missing.iter().filter(|m| REQUIRED.contains(&m.as_str())).cloned().collect();
        if !missing.is_empty() {
            let _ = fs::remove_file(&aside);
            return Err(make(MakeError::KernelUnfit {
                release: package.release,
                missing: missing.join(", "),
            }));
        }
        fs::rename(&aside, &modules).map_err(|e| MachineError::io("rename", &aside, e))?;
    }
    Ok((package, modules))
}

/// Writes the ramdisk: the archive of modules, and behind it one with everything else.
pub(crate) fn write(out: &Path, parts: &Parts<'_>) -> Result<(), MachineError> {
    write_to(out, parts).map_err(|e| MachineError::io("write", out, e))
}

fn write_to(out: &Path, parts: &Parts<'_>) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    // It contains the machine's private key.
    let file = options.create(true).truncate(true).write(true).mode(0o600).open(out)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    let length = io::copy(&mut File::open(parts.modules)?, &mut file)?;
    file.write_all(&[0; 3][..((4 - length % 4) % 4) as usize])?;
    let mut archive = CpioWriter::new(file);
    archive.folder("bin")?;
    put(&mut archive, "bin/busybox", 0o755, parts.busybox)?;
    archive.file("init", 0o755, packaged!("ramdisk-init"))?;
    for folder in ["", "/etc", "/etc/forkd-machine", "/usr", "/usr/local", "/usr/local/bin"] {
        archive.folder(&format!("payload{folder}"))?;
    }
    for (name, mode, content) in SCRIPTS {
        archive.file(&format!("payload/{name}"), mode, content)?;
    }
    put(&mut archive, "payload/etc/forkd-machine/host_key", 0o600, parts.host_key)?;
    put(&mut archive, "payload/etc/forkd-machine/authorized_keys", 0o600, parts.authorized_key)?;
    archive.file("payload/etc/forkd-machine/owner_token", 0o600, parts.owner_token.as_bytes())?;
    archive.file("payload/etc/forkd-machine/guest_ports", 0o644, parts.guest_ports.as_bytes())?;
    for name in PROGRAMS {
        put(&mut archive, &format!("payload/usr/local/bin/{name}"), 0o755, &parts.programs.path(name))?;
    }
    archive.finish()?.flush()
}

fn put<W: Write>(archive: &mut CpioWriter<W>, name: &str, mode: u32, path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    archive.file_from(name, mode, file.metadata()?.len(), file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ramdisk_starts_with_the_modules_and_ends_with_the_programs() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in PROGRAMS.into_iter().chain(["busybox", "key", "key.pub"]) {
            fs::write(at(name), format!("<{name}>")).unwrap();
        }
        fs::write(at("modules"), b"12345").unwrap();
        let programs = Programs::in_folder(dir.path()).unwrap();
        let (modules, busybox, key, public) = (at("modules"), at("busybox"), at("key"), at("key.pub"));
        let parts = Parts {
            modules: &modules,
            busybox: &busybox,
            programs: &programs,
            host_key: &key,
            authorized_key: &public,
            owner_token: "<token>",
            guest_ports: "<ports>",
        };
        write(&at("initrd"), &parts).unwrap();
        let bytes = fs::read(at("initrd")).unwrap();
        assert_eq!(
            &bytes[..14],
            b"12345\x00\x00\x00070701",
            "the second archive starts at a multiple of four"
        );
        let text = String::from_utf8_lossy(&bytes);
        for wanted in [
            "payload/usr/local/bin/forkd-agent\0",
            "<forkd-agent>",
            "payload/etc/inittab\0",
            "<key.pub>",
            "<token>",
            "<ports>",
        ] {
            assert!(text.contains(wanted), "{wanted}");
        }
    }

    #[test]
    fn scripts_are_for_a_shell_and_name_each_other_rightly() {
        for (name, mode, content) in SCRIPTS {
            let text = std::str::from_utf8(content).unwrap();
            assert_eq!(mode & 0o111 != 0, text.starts_with("#!/bin/busybox sh\n"), "{name}");
            let words = text.split(|c: char| c.is_whitespace() || "\"')".contains(c));
            for word in words.filter_map(|w| w.strip_prefix("/etc/forkd-machine/")) {
                let written_at_start =
                    ["host_key", "authorized_keys", "owner_token", "guest_ports", "data-disk"]
                        .contains(&word);
                let packaged =
                    SCRIPTS.iter().any(|(n, ..)| n.strip_prefix("etc/forkd-machine/") == Some(word));
                assert!(written_at_start || packaged, "{name} names {word}");
            }
        }
    }
}
