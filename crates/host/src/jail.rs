//! What a process is allowed and what it holds, read from `/proc`. Source: proc(5), Documentation/filesystems/proc.rst.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// Namespaces that are looked at, as they are called in `/proc/PID/ns`.
pub const NAMESPACES: [&str; 6] = ["mnt", "pid", "net", "ipc", "uts", "user"];

/// Everything that is looked at of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Those namespaces that are also the caller's.
    pub shared_namespaces: BTreeSet<&'static str>,
    /// Real, effective, saved and file system user.
    pub users: Vec<u32>,
    /// The same of groups.
    pub groups: Vec<u32>,
    /// How many further groups.
    pub supplementary: usize,
    /// Capabilities that it has in any set, by the set's name (`CapEff`).
    pub capabilities: BTreeMap<String, u64>,
    /// Whether it can never gain a right by executing something.
    pub no_new_privileges: bool,
    /// Mode of seccomp (2: a filter) and number of filters of each thread, by name and number of the thread.
    pub threads: BTreeMap<String, (u32, u32)>,
    /// Number of entries in its root.
    pub root_entries: usize,
    /// Whether its root cannot be written.
    pub root_read_only: bool,
    /// How many descriptors of each kind: `file`, `directory`, `socket`, a device's path, ...
    pub descriptors: BTreeMap<String, usize>,
    /// Soft and hard limits by the kernel's name; `None` for none.
    pub limits: BTreeMap<String, (Option<u64>, Option<u64>)>,
    /// Number of its parent in that one's innermost pid namespace.
    pub parent_number: Option<u32>,
}

impl Facts {
    /// Looks at process `pid`, which must not end meanwhile.
    pub fn of(pid: u32) -> io::Result<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let status = Status::read(&proc)?;
        let root = proc.join("root");
        Ok(Self {
            shared_namespaces: shared_namespaces(&proc)?,
            users: status.numbers("Uid"),
            groups: status.numbers("Gid"),
            supplementary: status.numbers("Groups").len(),
            capabilities: status.capabilities(),
            no_new_privileges: status.numbers("NoNewPrivs") == [1],
            threads: threads(&proc)?,
            root_entries: fs::read_dir(&root)?.count(),
            root_read_only: statvfs(&root)?.f_flag.contains(StatVfsMountFlags::RDONLY),
            descriptors: descriptors(&proc)?,
            limits: limits_in(&fs::read_to_string(proc.join("limits"))?),
            parent_number: parent_number(&status),
        })
    }
}

/// Lines `Key: values` of a status file.
struct Status(String);

impl Status {
    fn read(proc: &Path) -> io::Result<Self> {
        fs::read_to_string(proc.join("status")).map(Self)
    }

    fn value(&self, key: &str) -> &str {
        let line = self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap_or_default().trim()
    }

    fn numbers(&self, key: &str) -> Vec<u32> {
        self.value(key).split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    fn capabilities(&self) -> BTreeMap<String, u64> {
        let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
        // What cannot be read counts as all of them.
        let bits = |set| u64::from_str_radix(self.value(set), 16).unwrap_or(u64::MAX);
        sets.into_iter().map(|set| (set.to_owned(), bits(set))).filter(|(_, bits)| *bits != 0).collect()
    }
}

fn shared_namespaces(proc: &Path) -> io::Result<BTreeSet<&'static str>> {
    let mut shared = BTreeSet::new();
    for name in NAMESPACES {
        if fs::read_link(proc.join("ns").join(name))? == fs::read_link(format!("/proc/self/ns/{name}"))? {
            shared.insert(name);
        }
    }
    Ok(shared)
}

fn threads(proc: &Path) -> io::Result<BTreeMap<String, (u32, u32)>> {
    let mut threads = BTreeMap::new();
    for entry in fs::read_dir(proc.join("task"))? {
        let entry = entry?;
        // One that has just ended has nothing to show.
        let Ok(status) = Status::read(&entry.path()) else { continue };
        if is_kernels(&entry.path()) {
            continue;
        }
        let first = |key| status.numbers(key).first().copied().unwrap_or(0);
        let name = format!("{} {}", status.value("Name"), entry.file_name().display());
        threads.insert(name, (first("Seccomp"), first("Seccomp_filters")));
    }
    Ok(threads)
}

/// Whether a thread runs nothing but the kernel's own code (`PF_USER_WORKER`, Linux 6.3), as one of KVM's does that
/// belongs to the process. It never asks for anything.
fn is_kernels(task: &Path) -> bool {
    const USER_WORKER: u64 = 0x4000;
    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    // Field 9; the name is field 2.
    let flags = after_name.split_ascii_whitespace().nth(9 - 3).and_then(|flags| flags.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & USER_WORKER != 0)
}

fn descriptors(proc: &Path) -> io::Result<BTreeMap<String, usize>> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(proc.join("fd"))? {
        let path = entry?.path();
        let Ok(target) = fs::read_link(&path) else { continue };
        *kinds.entry(kind(&path, &target.to_string_lossy())).or_insert(0) += 1;
    }
    Ok(kinds)
}

/// What a descriptor is, by what its link in /proc says.
fn kind(link: &Path, target: &str) -> String {
    if let Some(anonymous) = target.strip_prefix("anon_inode:") {
        let name = anonymous.trim_matches(['[', ']']);
        return name.split(':').next().unwrap_or(name).to_owned();
    }
    if let Some((name, _)) = target.split_once(":[") {
        return name.to_owned();
    }
    if target.starts_with("/dev/") {
        return target.to_owned();
    }
    if fs::metadata(link).is_ok_and(|meta| meta.is_dir()) {
        "directory".to_owned()
    } else {
        "file".to_owned()
    }
}

/// Columns of `/proc/PID/limits`: a name of several words, two numbers or `unlimited`, a unit.
fn limits_in(text: &str) -> BTreeMap<String, (Option<u64>, Option<u64>)> {
    let limit = |line: &str| {
        let mut columns = line.split("  ").map(str::trim).filter(|column| !column.is_empty());
        let (name, soft, hard) = (columns.next()?, columns.next()?, columns.next()?);
        Some((name.to_owned(), (soft.parse().ok(), hard.parse().ok())))
    };
    text.lines().skip(1).filter_map(limit).collect()
}

fn parent_number(status: &Status) -> Option<u32> {
    let parent = status.numbers("PPid").first().copied()?;
    Status::read(&PathBuf::from(format!("/proc/{parent}"))).ok()?.numbers("NSpid").last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ourselves_everything_is_known_and_shared() {
        let facts = Facts::of(std::process::id()).unwrap();
        assert_eq!(facts.shared_namespaces.len(), NAMESPACES.len());
        assert_eq!(facts.users[0], rustix::process::getuid().as_raw());
        assert!(facts.root_entries > 0 && !facts.threads.is_empty());
        assert!(facts.descriptors.values().sum::<usize>() >= 3, "{:?}", facts.descriptors);
        assert!(facts.limits.contains_key("Max open files"), "{:?}", facts.limits);
    }

    #[test]
    fn kinds_are_those_that_links_tell() {
        let kind = |target| kind(Path::new("/nowhere"), target);
        assert_eq!(kind("anon_inode:[eventpoll]"), "eventpoll");
        assert_eq!(kind("anon_inode:kvm-vcpu:0"), "kvm-vcpu");
        assert_eq!(kind("socket:[123]"), "socket");
        assert_eq!(kind("/dev/kvm"), "/dev/kvm");
        assert_eq!(kind("/var/lib/forkd/a (deleted)"), "file");
    }

    #[test]
    fn limits_of_several_words_are_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max core file size        0                    unlimited            bytes     \n\
                    Max nice priority         20                   30                             \n";
        let limits = limits_in(text);
        assert_eq!(limits["Max core file size"], (Some(0), None));
        assert_eq!(limits["Max nice priority"], (Some(20), Some(30)));
    }

    #[test]
    fn capabilities_that_cannot_be_read_count_as_all() {
        let status = Status("CapInh:\t0000000000000000\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t0\n".to_owned());
        assert_eq!(status.capabilities(), BTreeMap::from([("CapAmb".to_owned(), u64::MAX)]));
    }
}
