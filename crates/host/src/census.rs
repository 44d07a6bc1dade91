//! What there is on this host that sandboxes could leave behind, counted.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forkd_protocol::rest::HostCounts;

use crate::memory;

/// Kinds of namespaces that sandboxes have of their own.
const KINDS: [&str; 6] = ["net", "mnt", "pid", "ipc", "uts", "user"];

/// Counts. `root` is the store, `monitor` the program of monitors as the kernel names it (15 bytes at most).
///
/// # Errors
/// /proc or /sys cannot be read.
pub fn count(root: &Path, monitor: &str) -> io::Result<HostCounts> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let processes = processes()?;
    let links = Links::count()?;
    Ok(HostCounts {
        controller_pid: std::process::id(),
        controller_start_ticks: start_ticks(std::process::id())?,
        namespaces: namespaces(&processes, &mounts),
        taps: links.taps,
        veths: links.veths,
        mounts: mounts.lines().count() as u64,
        descriptors: entries(Path::new("/proc/self/fd"))?,
        cgroups: 0,
        processes: processes.iter().filter(|pid| is_running(**pid, monitor)).count() as u64,
        zombies: processes.iter().filter(|pid| is_our_zombie(**pid)).count() as u64,
        nft_rules: None,
        run_folders: entries(&root.join("run"))?,
        disk_bytes: disk_bytes(root)?,
        controller_bytes: memory::anonymous(std::process::id())?,
    })
}

/// Interfaces of this network namespace.
struct Links {
    taps: u64,
    veths: u64,
}

impl Links {
    fn count() -> io::Result<Self> {
        let mut links = Self { taps: 0, veths: 0 };
        let Ok(all) = fs::read_dir("/sys/class/net") else { return Ok(links) };
        for link in all {
            let link = link?.path();
            let number = |file: &str| fs::read_to_string(link.join(file)).ok();
            if link.join("tun_flags").exists() {
                links.taps += 1;
            } else if !link.join("device").exists() && number("iflink") != number("ifindex") {
                // Its other end has another number: a pair of them.
                links.veths += 1;
            }
        }
        Ok(links)
    }
}

fn processes() -> io::Result<Vec<u32>> {
    let all = fs::read_dir("/proc")?.flatten();
    Ok(all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Those that some process is in, and those that are kept by a mount.
fn namespaces(processes: &[u32], mountinfo: &str) -> u64 {
    let mut all = BTreeSet::new();
    for (pid, kind) in processes.iter().flat_map(|pid| KINDS.map(|kind| (pid, kind))) {
        if let Ok(link) = fs::read_link(format!("/proc/{pid}/ns/{kind}")) {
            all.extend(link.to_str().map(str::to_owned));
        }
    }
    all.extend(mounted_namespaces(mountinfo).map(str::to_owned));
    all.len() as u64
}

/// The root of a mount of nsfs names the namespace, such as `net:[4026532000]`.
fn mounted_namespaces(mountinfo: &str) -> impl Iterator<Item = &str> {
    let roots = mountinfo.lines().filter_map(|line| line.split(' ').nth(3));
    roots.filter(|root| root.contains(":["))
}

fn is_running(pid: u32, program: &str) -> bool {
    stat(pid).is_ok_and(|stat| stat.name == program && stat.state != 'Z')
}

fn is_our_zombie(pid: u32) -> bool {
    stat(pid).is_ok_and(|stat| stat.state == 'Z' && stat.parent == std::process::id())
}

fn start_ticks(pid: u32) -> io::Result<u64> {
    Ok(stat(pid)?.start_ticks)
}

struct Stat {
    name: String,
    state: char,
    parent: u32,
    start_ticks: u64,
}

fn stat(pid: u32) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    parse_stat(&String::from_utf8_lossy(&text)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The name may hold anything, also `)` and spaces.
fn parse_stat(text: &str) -> Option<Stat> {
    let (before, after) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    Some(Stat {
        name: before.split_once('(')?.1.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start_ticks: fields.get(22 - 3)?.parse().ok()?,
    })
}

fn entries(folder: &Path) -> io::Result<u64> {
    Ok(fs::read_dir(folder)?.count() as u64)
}

/// Blocks that the files of a folder take, each file once. What goes away meanwhile does not count.
fn disk_bytes(folder: &Path) -> io::Result<u64> {
    let mut seen = BTreeSet::new();
    let (mut sum, mut left) = (0u64, vec![folder.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(found) = entry.metadata() else { continue };
            if found.is_dir() {
                left.push(entry.path());
            } else if seen.insert((found.dev(), found.ino())) {
                sum = sum.saturating_add(found.blocks().saturating_mul(512));
            }
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_counted() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/sb-1")).unwrap();
        fs::write(root.path().join("file"), vec![1; 100_000]).unwrap();
        fs::hard_link(root.path().join("file"), root.path().join("again")).unwrap();
        let counts = count(root.path(), "no such program").unwrap();
        assert_eq!((counts.run_folders, counts.processes), (1, 0));
        assert!(counts.namespaces >= 6 && counts.mounts > 0 && counts.descriptors > 2, "{counts:?}");
        assert!((100_000..200_000).contains(&counts.disk_bytes), "{counts:?}");
        assert!(counts.controller_bytes > 0 && counts.controller_start_ticks > 0);
    }

    #[test]
    fn names_and_mounts_are_read_as_they_are() {
        let stat = parse_stat("42 (a (b) c) Z 7 42 42 0 -1 4 1 2 3 4 5 6 7 8 20 0 1 0 987 1").unwrap();
        assert_eq!((stat.name.as_str(), stat.state, stat.parent, stat.start_ticks), ("a (b) c", 'Z', 7, 987));
        assert!(parse_stat("42 (a").is_none());
        let mounts = "1 2 0:4 net:[4026532000] /run/netns/a rw - nsfs nsfs rw\n2 2 0:5 / / rw - ext4 x rw\n";
        assert_eq!(mounted_namespaces(mounts).collect::<Vec<_>>(), ["net:[4026532000]"]);
    }
}
