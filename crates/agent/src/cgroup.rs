//! The guest's cgroups (v2).
//!
//! ```text
//! /sys/fs/cgroup/forkd-agent      PID 1, never frozen
//! /sys/fs/cgroup/forkd-hooks/n    what runs between restore and thaw
//! /sys/fs/cgroup/workload         frozen as a whole before a snapshot
//! /sys/fs/cgroup/workload/kernel  the warm interpreter
//! /sys/fs/cgroup/workload/p-n     one process asked for, with all its descendants
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Which part of the tree a process belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Branch {
    /// Stands still while a snapshot is taken.
    Workload,
    /// Runs also while the workload is frozen.
    Hooks,
}

/// The tree. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups(Arc<Tree>);

#[derive(Debug)]
struct Tree {
    root: PathBuf,
    next: AtomicU64,
    /// Left by ended processes whose descendants may still run; removed once empty.
    leftover: Mutex<Vec<PathBuf>>,
}

/// One cgroup made for one process tree.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    dir: File,
    tree: Cgroups,
}

impl Cgroups {
    /// Creates the tree below `root`; where `adopt_self`, this process moves into its own branch.
    pub(crate) fn create(root: &Path, adopt_self: bool) -> io::Result<Self> {
        for name in ["forkd-agent", "forkd-hooks", "workload"] {
            create_dir(&root.join(name))?;
        }
        if adopt_self {
            fs::write(root.join("forkd-agent/cgroup.procs"), "0")?;
        }
        // A kernel without these two could neither end nor freeze a tree.
        fs::metadata(root.join("workload/cgroup.kill"))?;
        fs::metadata(root.join("workload/cgroup.freeze"))?;
        let (next, leftover) = (AtomicU64::new(1), Mutex::default());
        Ok(Self(Arc::new(Tree { root: root.to_owned(), next, leftover })))
    }

    /// A new cgroup; `label` is part of its name.
    pub(crate) fn add(&self, branch: Branch, label: &str) -> io::Result<Cgroup> {
        let parent = match branch {
            Branch::Workload => "workload",
            Branch::Hooks => "forkd-hooks",
        };
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let path = self.0.root.join(parent).join(format!("{label}-{number}"));
        create_dir(&path)?;
        let dir = File::open(&path)?;
        Ok(Cgroup { path, dir, tree: self.clone() })
    }

    /// Removes what ended processes left, as far as it is empty by now. To be called when processes ended.
    pub(crate) fn sweep(&self) {
        let mut leftover = self.0.leftover.lock().unwrap_or_else(PoisonError::into_inner);
        leftover.retain(|path| fs::remove_dir(path).is_err_and(|e| e.kind() != io::ErrorKind::NotFound));
    }

    /// Stops the whole workload; returns once it stands still, or an error of kind `TimedOut`, after which it is to
    /// be thawed. Blocks the thread.
    pub(crate) fn freeze(&self, bound: Duration) -> io::Result<()> {
        let workload = self.0.root.join("workload");
        let mut events = File::open(workload.join("cgroup.events"))?;
        fs::write(workload.join("cgroup.freeze"), "1")?;
        let deadline = Instant::now() + bound;
        loop {
            let mut text = String::new();
            events.seek(SeekFrom::Start(0))?;
            events.read_to_string(&mut text)?;
            if text.lines().any(|line| line == "frozen 1") {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The kernel signals a change of the file as POLLPRI, relative to the last read.
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&timeout))?;
        }
    }

    /// Lets the workload run.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        fs::write(self.0.root.join("workload/cgroup.freeze"), "0")
    }
}

impl Cgroup {
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// SIGKILL to every process inside, whatever sessions and parents they have made; also while frozen.
    pub(crate) fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if fs::remove_dir(&self.path).is_err() {
            self.tree.0.leftover.lock().unwrap_or_else(PoisonError::into_inner).push(self.path.clone());
        }
    }
}

fn create_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
