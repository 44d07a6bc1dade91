//! File systems of the guest.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};

use super::{BootError, While};

const NEW_ROOT: &str = "/newroot";
/// Between two looks at whether the root device is there.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What the ramdisk needs.
pub(super) fn early() -> Result<(), BootError> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_NODEV;
    put("proc", "/proc", plain, "")?;
    put("sysfs", "/sys", plain, "")?;
    put("devtmpfs", "/dev", MsFlags::MS_NOSUID, "mode=0755")
}

/// What the image's root needs beside what moved along.
pub(super) fn late() -> Result<(), BootError> {
    let plain = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    put("devpts", "/dev/pts", MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC, "gid=5,mode=620,ptmxmode=666")?;
    put("tmpfs", "/dev/shm", plain, "mode=1777")?;
    put("tmpfs", "/run", plain, "mode=0755")?;
    put("cgroup2", "/sys/fs/cgroup", plain | MsFlags::MS_NOEXEC, "")?;
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        let link = Path::new("/dev").join(name);
        if name == "ptmx" {
            let _ = fs::remove_file(&link);
        }
        // devtmpfs is fresh, so they are missing; a kernel that makes them itself is fine as well.
        let _ = symlink(target, link);
    }
    Ok(())
}

/// Returns once the device is there.
pub(super) fn wait_for(device: &str, bound: Duration) -> Result<(), BootError> {
    let deadline = Instant::now() + bound;
    while !Path::new(device).exists() {
        if Instant::now() >= deadline {
            return Err(io::Error::from(io::ErrorKind::TimedOut)).during(format!("waiting for {device}"));
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Makes the image the root of this process and of all that it will start.
pub(super) fn switch_root(device: &str) -> Result<(), BootError> {
    make_dir(Path::new(NEW_ROOT), 0o755)?;
    mount(Some(device), NEW_ROOT, Some("ext4"), MsFlags::MS_NOATIME, None::<&str>)
        .during(format!("mounting {device}"))?;
    let inside = |path: &str| Path::new(NEW_ROOT).join(path);
    for path in ["proc", "sys", "dev", "run", "root", "home", "etc"] {
        make_dir(&inside(path), if path == "root" { 0o700 } else { 0o755 })?;
    }
    make_dir(&inside("tmp"), 0o1777)?;
    for path in ["proc", "sys", "dev"] {
        let from = Path::new("/").join(path);
        mount(Some(&from), &inside(path), None::<&str>, MsFlags::MS_MOVE, None::<&str>)
            .during(format!("moving {}", from.display()))?;
    }
    // The running program keeps its pages; the name is not needed any more.
    for file in ["/init", "/modules.order.forkd"] {
        let _ = fs::remove_file(file);
    }
    std::env::set_current_dir(NEW_ROOT).during("entering the image")?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>).during("moving the root")?;
    nix::unistd::chroot(".").during("changing the root")?;
    std::env::set_current_dir("/").during("entering the root")
}

fn put(kind: &str, target: &str, flags: MsFlags, options: &str) -> Result<(), BootError> {
    make_dir(Path::new(target), 0o755)?;
    match mount(Some(kind), target, Some(kind), flags, Some(options)) {
        // Already there, from the kernel or from an earlier program of the ramdisk.
        Err(nix::Error::EBUSY) => Ok(()),
        other => other.during(format!("mounting {target}")),
    }
}

/// Makes a folder where nothing is; a link in its place, as /tmp in some images, is left alone.
fn make_dir(path: &Path, mode: u32) -> Result<(), BootError> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let made =
        fs::create_dir(path).and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)));
    made.during(format!("making {}", path.display()))
}
