//! cgroup v2: one leaf per sandbox, below a folder of its store, below `forkd`.
//!
//! ```text
//! /sys/fs/cgroup/forkd/<store>/<leaf>     one for each monitor, made before the monitor
//!                             /writers    writers of live branches that outlive their sandbox
//!                             /holder     who reads templates in, so that their pages are charged to no sandbox
//! ```
//!
//! A leaf is named by the monitor that was started in it, which may have waited under another name than its sandbox
//! has. Where the host has no cgroup v2 there are no leaves, and a limit is refused rather than ignored. Moving a process
//! costs a grace period of the kernel, and one that has children already would leave them behind: so a process enters by
//! itself, first thing, through the file that [`Cgroup::door`] names.

mod device;
mod error;
mod leaf;
mod usage;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forkd_protocol::rest::Limits;

use device::Device;
pub use error::CgroupError;
pub use leaf::Cgroup;
pub use usage::Usage;

/// Name of the folder below which all stores have theirs.
const PARENT: &str = "forkd";
/// Name of the leaf of writers; no monitor is called so.
const WRITERS: &str = "writers";
/// Name of the leaf of who reads templates in; no monitor is called so.
const HOLDER: &str = "holder";
/// What leaves are given where the host has it.
const WANTED: [&str; 4] = ["memory", "cpu", "io", "pids"];

/// The place where leaves are made, or why there is none.
#[derive(Debug, Clone)]
pub struct Cgroups {
    place: Result<Place, String>,
}

#[derive(Debug, Clone)]
struct Place {
    /// Leaves lie in here.
    folder: PathBuf,
    /// Controllers that leaves have.
    controllers: BTreeSet<&'static str>,
    /// The disk of the store, or why its traffic cannot be limited.
    disk: Result<Device, String>,
}

impl Cgroups {
    /// Looks at the host once, for the store at `root`. Never fails: what is missing is said when a limit is asked for.
    pub fn detect(root: &Path) -> Self {
        match mounted() {
            Some(mount) => Self::at(&mount, root),
            None => {
                Self { place: Err("cgroup v2 is not mounted (boot with a unified hierarchy)".to_owned()) }
            }
        }
    }

    /// Uses the hierarchy mounted at `mount`.
    pub fn at(mount: &Path, root: &Path) -> Self {
        Self { place: Place::prepare(mount, root) }
    }

    /// Whether these limits can be enforced; otherwise what is missing.
    pub fn check(&self, limits: &Limits) -> Result<(), CgroupError> {
        let io = !limits.io.is_empty();
        let asked = [
            ("memory", "memory", limits.memory_mib.is_some()),
            ("processors", "cpu", limits.cpus.is_some()),
            ("processes", "pids", limits.pids.is_some()),
            ("disk traffic", "io", io),
        ];
        for (what, controller, _) in asked.into_iter().filter(|(.., asked)| *asked) {
            let place = self.place.as_ref();
            let place = place.map_err(|reason| CgroupError::Unavailable { what, reason: reason.clone() })?;
            if !place.controllers.contains(controller) {
                let reason = format!(
                    "cgroup v2 has no {controller} controller here (it is bound to cgroup v1; boot with a unified \
                     hierarchy)"
                );
                return Err(CgroupError::Unavailable { what, reason });
            }
            if let (true, Err(reason)) = (controller == "io", &place.disk) {
                return Err(CgroupError::Unavailable { what, reason: reason.clone() });
            }
        }
        Ok(())
    }

    /// Whether leaves can have a limit of processes.
    pub fn limits_processes(&self) -> bool {
        self.place.as_ref().is_ok_and(|place| place.controllers.contains("pids"))
    }

    /// Makes the leaf of a monitor; `None` where the host has none.
    pub fn create(&self, name: &str) -> Result<Option<Cgroup>, CgroupError> {
        let Ok(place) = &self.place else { return Ok(None) };
        let path = place.folder.join(name);
        fs::create_dir(&path).map_err(|e| CgroupError::io("make", &path, e))?;
        Ok(Some(Cgroup::new(path)))
    }

    /// Gives a leaf these limits, and no others.
    pub fn limit(&self, leaf: &Cgroup, limits: &Limits) -> Result<(), CgroupError> {
        self.check(limits)?;
        let Ok(place) = &self.place else { return Ok(()) };
        let has = |controller| place.controllers.contains(controller);
        if has("memory") {
            leaf.limit_memory(limits.memory_bytes())?;
        }
        if has("cpu") {
            leaf.limit_cpus(limits.cpus)?;
        }
        if has("pids") {
            leaf.limit_pids(limits.pids)?;
        }
        match &place.disk {
            Ok(disk) if has("io") => leaf.limit_io(disk, &limits.io),
            _ => Ok(()),
        }
    }

    /// A leaf that was made before, where it is there.
    pub fn find(&self, name: &str) -> Option<Cgroup> {
        let path = self.place.as_ref().ok()?.folder.join(name);
        path.is_dir().then(|| Cgroup::new(path))
    }

    /// The names of all leaves of monitors.
    pub fn leaves(&self) -> Result<Vec<String>, CgroupError> {
        let Ok(place) = &self.place else { return Ok(Vec::new()) };
        let failed = |e| CgroupError::io("list", &place.folder, e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&place.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) && name != WRITERS && name != HOLDER {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The leaf of processes that outlive the sandbox they came from for a while. It has no limit of its own: what
    /// they share with the sandbox stays charged there.
    pub fn writers(&self) -> Result<Option<Cgroup>, CgroupError> {
        self.standing(WRITERS)
    }

    /// The leaf of who reads templates in. It has no limit.
    pub fn holder(&self) -> Result<Option<Cgroup>, CgroupError> {
        self.standing(HOLDER)
    }

    fn standing(&self, name: &str) -> Result<Option<Cgroup>, CgroupError> {
        let Ok(place) = &self.place else { return Ok(None) };
        let path = place.folder.join(name);
        match fs::create_dir(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(CgroupError::io("make", &path, e)),
            _ => Ok(Some(Cgroup::new(path))),
        }
    }
}

impl Place {
    /// Makes the folders and hands the controllers down to the leaves; those that are not there are done without.
    fn prepare(mount: &Path, root: &Path) -> Result<Self, String> {
        let controllers = fs::read_to_string(mount.join("cgroup.controllers"))
            .map_err(|e| format!("{} has no cgroup.controllers: {e}", mount.display()))?;
        let there: BTreeSet<&str> = controllers.split_ascii_whitespace().collect();
        let parent = mount.join(PARENT);
        let folder = parent.join(name_of(root)?);
        fs::create_dir_all(&folder).map_err(|e| format!("{} could not be made: {e}", folder.display()))?;
        let wanted = WANTED.into_iter().filter(|controller| there.contains(controller));
        let handed = wanted.filter(|controller| {
            // Where the first fails the others do.
            [mount, &parent, &folder].into_iter().all(|place| {
                fs::write(place.join("cgroup.subtree_control"), format!("+{controller}")).is_ok()
            })
        });
        Ok(Self { controllers: handed.collect(), folder, disk: Device::of(root) })
    }
}

/// What the folder of a store is called: by its own inode, so that stores on one host do not meet, whatever path leads
/// to them.
fn name_of(root: &Path) -> Result<String, String> {
    let found = fs::metadata(root).map_err(|e| format!("{} cannot be looked at: {e}", root.display()))?;
    Ok(format!("{:x}-{:x}", found.dev(), found.ino()))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(controllers: &str) -> (tempfile::TempDir, Cgroups) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        let groups = Cgroups::at(dir.path(), dir.path());
        (dir, groups)
    }

    fn limits(text: &str) -> Limits {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn without_cgroup_v2_a_limit_is_refused_with_the_reason_and_there_is_no_leaf() {
        let dir = tempfile::tempdir().unwrap();
        let groups = Cgroups::at(dir.path(), dir.path());
        for asked in
            [r#"{"memory_mib": 256}"#, r#"{"cpus": 1}"#, r#"{"pids": 9}"#, r#"{"io": {"read_ops": 5}}"#]
        {
            let refused = groups.check(&limits(asked));
            assert!(matches!(refused, Err(CgroupError::Unavailable { .. })), "{asked}");
        }
        groups.check(&Limits::default()).unwrap();
        assert!(groups.create("sb-1").unwrap().is_none() && groups.leaves().unwrap().is_empty());
    }

    #[test]
    fn a_controller_that_is_missing_is_named() {
        let (_dir, groups) = hierarchy("memory pids\n");
        groups.check(&limits(r#"{"memory_mib": 256, "pids": 9}"#)).unwrap();
        let refused = groups.check(&limits(r#"{"cpus": 0.5}"#)).unwrap_err().to_string();
        assert!(refused.contains("processors") && refused.contains("cpu controller"), "{refused}");
        assert!(groups.limits_processes());
    }

    #[test]
    fn leaves_of_one_store_are_found_again_and_those_of_another_are_not_its() {
        let (dir, groups) = hierarchy("cpu memory pids\n");
        groups.create("wm-1").unwrap().unwrap();
        assert!(groups.create("wm-1").is_err(), "a leaf belongs to one monitor");
        groups.writers().unwrap().unwrap();
        groups.holder().unwrap().unwrap();
        assert_eq!(groups.leaves().unwrap(), ["wm-1"]);
        let elsewhere = tempfile::tempdir().unwrap();
        let other = Cgroups::at(dir.path(), elsewhere.path());
        assert!(other.leaves().unwrap().is_empty() && other.find("wm-1").is_none());
        assert!(Cgroups::at(dir.path(), dir.path()).find("wm-1").is_some());
    }

    #[test]
    fn the_hierarchy_is_found_in_the_mounts() {
        let mounts = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw,nsdelegate 0 0\n";
        assert_eq!(parse_mounts(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(parse_mounts("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"), None);
    }
}
