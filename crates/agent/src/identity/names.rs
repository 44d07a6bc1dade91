//! Host name, machine id and boot id.

use std::fs;
use std::io;
use std::path::Path;

use nix::mount::{MsFlags, mount};

use super::Change;
use super::steps::{StepError, write_if_changed};

/// Lies over the kernel's own boot id, which nobody can change.
const BOOT_ID: &str = "/run/forkd/boot_id";
const KERNEL_BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The address of a machine's own name where it has no fixed one, as Debian has it.
const OWN_ADDRESS: &str = "127.0.1.1";

pub(super) fn hostname(change: &Change<'_>) -> Result<(), StepError> {
    let name = change.identity.hostname.as_str();
    nix::unistd::sethostname(name)?;
    write_if_changed(Path::new("/etc/hostname"), &format!("{name}\n"))?;
    let hosts = Path::new("/etc/hosts");
    let old = fs::read(hosts).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    Ok(write_if_changed(hosts, &with_own_name(&old, name))?)
}

pub(super) fn machine_id(change: &Change<'_>) -> Result<(), StepError> {
    let text = format!("{}\n", change.identity.machine_id);
    write_if_changed(Path::new("/etc/machine-id"), &text)?;
    let dbus = Path::new("/var/lib/dbus/machine-id");
    // Usually a link to the other one.
    if dbus.symlink_metadata().is_ok_and(|metadata| metadata.is_file()) {
        write_if_changed(dbus, &text)?;
    }
    Ok(())
}

pub(super) fn boot_id(change: &Change<'_>) -> Result<(), StepError> {
    Ok(fs::write(BOOT_ID, format!("{}\n", change.identity.boot_id))?)
}

/// Puts a file that can be rewritten in the kernel's place, once, before anything else runs.
pub(crate) fn prepare_boot_id() -> io::Result<()> {
    fs::create_dir_all("/run/forkd")?;
    fs::write(BOOT_ID, fs::read(KERNEL_BOOT_ID)?)?;
    mount(Some(BOOT_ID), KERNEL_BOOT_ID, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(())
}

/// The hosts file with exactly one line for the machine's own name; one that lacks localhost is given it.
pub(crate) fn with_own_name(hosts: &str, name: &str) -> String {
    let is_own = |line: &str| line.split_whitespace().next() == Some(OWN_ADDRESS);
    let has_localhost = hosts.lines().any(|line| {
        !line.starts_with('#') && line.split_whitespace().skip(1).any(|word| word == "localhost")
    });
    let mut text = String::new();
    if !has_localhost {
        text.push_str("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    }
    for line in hosts.lines().filter(|line| !is_own(line)) {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(&format!("{OWN_ADDRESS}\t{name}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_hosts_file_gets_localhost() {
        let text = with_own_name("", "a");
        assert!(text.starts_with("127.0.0.1\tlocalhost\n"));
        assert!(text.ends_with("127.0.1.1\ta\n"));
    }

    #[test]
    fn the_own_line_is_replaced_and_the_rest_kept() {
        let old = "127.0.0.1 localhost\n# mine\n127.0.1.1 old old.example\n10.0.0.1 db";
        let new = with_own_name(old, "new");
        assert_eq!(new, "127.0.0.1 localhost\n# mine\n10.0.0.1 db\n127.0.1.1\tnew\n");
        assert_eq!(with_own_name(&new, "new"), new);
    }
}
