//! What a monitor costs, apart from what its guest costs, read from `/proc/PID/smaps`.
//!
//! A child's RAM is a private mapping of layer files in the store: a page that the guest changed is an
//! anonymous page of such a mapping, any other is the template's page cache (which looks private where only
//! one child has it mapped). Everything else that is private belongs to the monitor itself.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Memory of one monitor process, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Private memory outside the guest's mappings: what the monitor itself costs.
    pub monitor_private: u64,
    /// Anonymous memory in mappings of layer files: what the guest changed.
    pub guest_private: u64,
    /// Page cache of the template that is mapped, which all children share.
    pub guest_shared: u64,
}

/// Memory of process `pid`; mappings of files below `guest_files` are the guest's.
pub fn memory_use(pid: u32, guest_files: &Path) -> io::Result<MemoryUse> {
    parse(BufReader::new(File::open(format!("/proc/{pid}/smaps"))?), guest_files)
}

/// Page tables of process `pid`, bytes.
pub fn page_tables(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(value(&status, "VmPTE").unwrap_or(0))
}

/// Memory of process `pid` that is no file's, bytes.
pub fn anonymous(pid: u32) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(value(&status, "RssAnon").unwrap_or(0))
}

/// Memory of the host, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMemory {
    /// All of it.
    pub total: u64,
    /// What is free, or can be made so without swapping.
    pub available: u64,
}

impl HostMemory {
    /// As it is now.
    pub fn now() -> io::Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let read = |key| value(&meminfo, key).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData));
        Ok(Self { total: read("MemTotal")?, available: read("MemAvailable")? })
    }
}

/// The value of a line such as `VmPTE:   132 kB`, bytes.
fn value(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| kib(line.strip_prefix(key)?.strip_prefix(':')?))
}

fn parse(smaps: impl BufRead, guest_files: &Path) -> io::Result<MemoryUse> {
    let mut sum = MemoryUse::default();
    let mut guest = false;
    for line in smaps.lines() {
        let line = line?;
        let Some((key, value)) = line.split_once(':').filter(|(key, _)| !key.contains(' ')) else {
            guest = mapped_file(&line).is_some_and(|path| Path::new(path).starts_with(guest_files));
            continue;
        };
        let Some(bytes) = kib(value) else { continue };
        match (key, guest) {
            ("Rss", true) => sum.guest_shared = sum.guest_shared.saturating_add(bytes),
            ("Anonymous", true) => {
                sum.guest_private = sum.guest_private.saturating_add(bytes);
                sum.guest_shared = sum.guest_shared.saturating_sub(bytes);
            }
            ("Swap", true) => sum.guest_private = sum.guest_private.saturating_add(bytes),
            ("Private_Clean" | "Private_Dirty" | "Swap", false) => {
                sum.monitor_private = sum.monitor_private.saturating_add(bytes);
            }
            _ => {}
        }
    }
    Ok(sum)
}

/// The sixth field of a header such as `7f..-7f.. rw-p 00000000 fd:00 1234   /a/file name (deleted)`.
fn mapped_file(header: &str) -> Option<&str> {
    let mut rest = header;
    for _ in 0..5 {
        rest = rest.trim_start().split_once(' ')?.1;
    }
    Some(rest.trim_start()).filter(|path| path.starts_with('/'))
}

fn kib(value: &str) -> Option<u64> {
    value.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0200000 r-xp 00000000 fd:00 77                         /usr/libexec/forkd-vmm
Size:               2048 kB
Private_Clean:        40 kB
Private_Dirty:         4 kB
7f0000000000-7f0020000000 rw-p 00000000 fd:00 4711                       /var/lib/forkd/layers/ab cd (deleted)
Rss:               10240 kB
Shared_Clean:       8192 kB
Private_Clean:        16 kB
Private_Dirty:      2032 kB
Anonymous:          2032 kB
Swap:                100 kB
VmFlags: rd wr mr mw me nr
7f0020000000-7f0020021000 rw-p 00000000 00:00 0
Private_Dirty:       132 kB
7f0020030000-7f0020033000 rw-s 00000000 00:0e 1                          anon_inode:kvm-vcpu:0
Private_Dirty:        12 kB
7f0020040000-7f0020043000 r--p 00000000 fd:00 1                          /var/lib/forkdX/layers/zz
Private_Clean:         8 kB
";

    #[test]
    fn what_the_guest_changed_is_told_from_what_the_monitor_costs() {
        let sum = parse(SMAPS.as_bytes(), Path::new("/var/lib/forkd")).unwrap();
        assert_eq!(sum.guest_private, (2032 + 100) * 1024);
        assert_eq!(sum.guest_shared, (10240 - 2032) * 1024);
        assert_eq!(sum.monitor_private, (44 + 132 + 12 + 8) * 1024);
    }

    #[test]
    fn our_own_memory_can_be_read() {
        let sum = memory_use(std::process::id(), Path::new("/nowhere")).unwrap();
        assert!(sum.monitor_private > 0);
        assert_eq!(sum.guest_private, 0);
    }

    #[test]
    fn a_host_has_memory_and_a_process_page_tables() {
        let memory = HostMemory::now().unwrap();
        assert!(memory.available > 0 && memory.available <= memory.total);
        assert!(page_tables(std::process::id()).unwrap() > 0);
        assert_eq!(value("VmPTEx: 1 kB\nVmPTE:\t  132 kB\n", "VmPTE"), Some(132 << 10));
    }

    #[test]
    fn nonsense_is_no_panic() {
        let sum = parse(":\n a: b\nPrivate_Dirty: 99999999999999999999 kB\n\n".as_bytes(), Path::new("/"));
        assert_eq!(sum.unwrap(), MemoryUse::default());
    }
}
