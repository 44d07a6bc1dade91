//! cgroup v2: one leaf per limited sandbox, below a `forkd` parent.
//!
//! Where the host has no cgroup v2 with the memory controller, a limit is refused rather than ignored; what
//! asks for no limit runs without a leaf. Moving a process costs a grace period of the kernel, so it is done
//! only for those that asked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Name of the parent below which all leaves lie.
const PARENT: &str = "forkd";
/// Name of the leaf of writers; no sandbox is called so.
const WRITERS: &str = "writers";
/// How long a leaf whose processes were killed may take to become empty.
const EMPTY_WITHIN: Duration = Duration::from_secs(10);

/// Why a limit could not be set.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The host cannot enforce limits; `reason` says what is missing. Ask without a limit.
    #[error("this host cannot limit memory: {reason}")]
    Unavailable {
        /// What is missing, and the cure.
        reason: String,
    },
    /// A file of the hierarchy could not be written or read.
    #[error("could not {what} {path}")]
    Io {
        /// The operation, as a verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl CgroupError {
    fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { what, path: path.to_owned(), source }
    }
}

/// The place where leaves are made, or why there is none.
#[derive(Debug, Clone)]
pub struct Cgroups {
    parent: Result<PathBuf, String>,
}

impl Cgroups {
    /// Looks at the host once. Never fails: what is missing is said when a limit is asked for.
    pub fn detect() -> Self {
        match mounted() {
            Some(root) => Self::at(&root),
            None => {
                Self { parent: Err("cgroup v2 is not mounted (boot with a unified hierarchy)".to_owned()) }
            }
        }
    }

    /// Uses the hierarchy mounted at `root`.
    pub fn at(root: &Path) -> Self {
        Self { parent: prepare(root) }
    }

    /// Whether limits can be enforced; otherwise what is missing.
    pub fn available(&self) -> Result<(), CgroupError> {
        self.parent().map(|_| ())
    }

    /// Makes the leaf of one sandbox, limited to `memory_max` bytes.
    pub fn create(&self, name: &str, memory_max: u64) -> Result<Cgroup, CgroupError> {
        let path = self.parent()?.join(name);
        fs::create_dir(&path).map_err(|e| CgroupError::io("make", &path, e))?;
        let leaf = Cgroup { path };
        // Without a bound on swap a limit on memory would only move the cost; hosts without swap lack the file.
        let limited = leaf.write("memory.max", &memory_max.to_string());
        let unswapped = if leaf.path.join("memory.swap.max").exists() {
            leaf.write("memory.swap.max", "0")
        } else {
            Ok(())
        };
        match limited.and(unswapped) {
            Ok(()) => Ok(leaf),
            Err(e) => {
                let _ = leaf.remove();
                Err(e)
            }
        }
    }

    /// The leaf of a sandbox that was made before a restart, where it has one.
    pub fn find(&self, name: &str) -> Option<Cgroup> {
        let path = self.parent.as_ref().ok()?.join(name);
        path.is_dir().then_some(Cgroup { path })
    }

    /// The leaf of processes that outlive the sandbox they came from for a while. It has no limit of its own: what
    /// they share with the sandbox stays charged there.
    pub fn writers(&self) -> Result<Cgroup, CgroupError> {
        let path = self.parent()?.join(WRITERS);
        match fs::create_dir(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(CgroupError::io("make", &path, e)),
            _ => Ok(Cgroup { path }),
        }
    }

    fn parent(&self) -> Result<&Path, CgroupError> {
        match &self.parent {
            Ok(path) => Ok(path),
            Err(reason) => Err(CgroupError::Unavailable { reason: reason.clone() }),
        }
    }
}

/// The leaf of one sandbox.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Moves a process in; what it maps from now on is charged here.
    pub fn add(&self, pid: u32) -> Result<(), CgroupError> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Sets its limit anew.
    pub fn limit_memory(&self, bytes: u64) -> Result<(), CgroupError> {
        self.write("memory.max", &bytes.to_string())
    }

    /// Bytes charged to it now.
    pub fn memory_current(&self) -> Result<u64, CgroupError> {
        let path = self.path.join("memory.current");
        let text = fs::read_to_string(&path).map_err(|e| CgroupError::io("read", &path, e))?;
        text.trim().parse().map_err(|_| CgroupError::io("read", &path, io::ErrorKind::InvalidData.into()))
    }

    /// How often the kernel killed in here because memory ran out.
    pub fn memory_kills(&self) -> u64 {
        fs::read_to_string(self.path.join("memory.events")).map_or(0, |events| parse_memory_kills(&events))
    }

    /// Kills everything in it.
    pub fn kill(&self) -> Result<(), CgroupError> {
        self.write("cgroup.kill", "1")
    }

    /// Kills what is left in it and removes it. One that is gone already is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        let deadline = Instant::now() + EMPTY_WITHIN;
        loop {
            match fs::remove_dir(&self.path) {
                Ok(()) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(e) if is_busy(&e) && Instant::now() < deadline => {
                    self.kill()?;
                    thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(CgroupError::io("remove", &self.path, e)),
            }
        }
    }

    fn write(&self, file: &str, value: &str) -> Result<(), CgroupError> {
        write(&self.path.join(file), value)
    }
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    fs::write(path, value).map_err(|e| CgroupError::io("write", path, e))
}

fn is_busy(e: &io::Error) -> bool {
    e.raw_os_error() == Some(Errno::BUSY.raw_os_error())
}

/// The unified hierarchy's mount point, from `/proc/mounts`.
fn mounted() -> Option<PathBuf> {
    parse_mounts(&fs::read_to_string("/proc/self/mounts").ok()?)
}

fn parse_mounts(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    })
}

fn parse_memory_kills(events: &str) -> u64 {
    events.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

/// Makes the parent and hands the memory controller down to its leaves.
fn prepare(root: &Path) -> Result<PathBuf, String> {
    let controllers = fs::read_to_string(root.join("cgroup.controllers"))
        .map_err(|e| format!("{} has no cgroup.controllers: {e}", root.display()))?;
    if !controllers.split_ascii_whitespace().any(|c| c == "memory") {
        return Err(format!(
            "the memory controller is not in {} (it is bound to cgroup v1; boot with a unified hierarchy)",
            root.display()
        ));
    }
    let parent = root.join(PARENT);
    match fs::create_dir(&parent) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(format!("{} could not be made: {e}", parent.display())),
    }
    for place in [root, parent.as_path()] {
        let control = place.join("cgroup.subtree_control");
        fs::write(&control, "+memory")
            .map_err(|e| format!("{} could not be written: {e}", control.display()))?;
    }
    Ok(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_memory_controller_a_limit_is_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        for content in [None, Some("cpu io pids\n")] {
            if let Some(content) = content {
                fs::write(dir.path().join("cgroup.controllers"), content).unwrap();
            }
            let groups = Cgroups::at(dir.path());
            assert!(matches!(groups.available(), Err(CgroupError::Unavailable { .. })));
            assert!(matches!(groups.create("sb-1", 1 << 28), Err(CgroupError::Unavailable { .. })));
            assert!(groups.find("sb-1").is_none());
        }
    }

    #[test]
    fn a_leaf_is_made_below_the_parent_with_its_limit() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), "cpu memory\n").unwrap();
        let groups = Cgroups::at(dir.path());
        let leaf = groups.create("sb-1", 1 << 28).unwrap();
        leaf.add(4711).unwrap();
        let made = dir.path().join("forkd/sb-1");
        assert_eq!(fs::read_to_string(made.join("memory.max")).unwrap(), "268435456");
        assert_eq!(fs::read_to_string(made.join("cgroup.procs")).unwrap(), "4711");
        assert!(groups.find("sb-1").is_some());
        assert!(groups.create("sb-1", 1).is_err(), "a leaf belongs to one sandbox");
    }

    #[test]
    fn mounts_and_events_are_read() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(parse_mounts(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(parse_mounts("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"), None);
        assert_eq!(parse_memory_kills("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"), 2);
        assert_eq!(parse_memory_kills(""), 0);
    }

    #[test]
    fn removing_what_is_gone_is_fine() {
        let dir = tempfile::tempdir().unwrap();
        Cgroup { path: dir.path().join("none") }.remove().unwrap();
    }
}
