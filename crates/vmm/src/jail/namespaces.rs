//! Leaving the host's namespaces and files behind.
//!
//! Sources: namespaces(7), pivot_root(2) on `pivot_root(".", ".")`, Documentation/filesystems/mount_api.rst.

use std::os::fd::OwnedFd;

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount,
    unmount,
};
use rustix::process::{fchdir, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::{JailError, Step};

/// What everybody in the jail sees as the name of its host.
const HOST_NAME: &[u8] = b"forkd";

/// Nothing of a mount can be executed, used as a device, or written.
const HARMLESS: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Gives the calling process mounts, network, System V IPC and names of its own, an empty root, and its children a
/// pid namespace.
pub(super) fn leave() -> Result<(), JailError> {
    let own = UnshareFlags::NEWNS
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWPID;
    // SAFETY: the flags do not contain FILES, so no descriptor changes its meaning.
    unsafe { unshare_unsafe(own) }.step("make namespaces")?;
    empty_root()
}

/// In the place of the host's name, which nobody here needs to know.
pub(super) fn name_host() -> Result<(), JailError> {
    rustix::system::sethostname(HOST_NAME).step("name the host")
}

/// Puts an empty file system over the root, makes that the root, and lets go of what lies below.
fn empty_root() -> Result<(), JailError> {
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).step("keep its mounts to itself")?;
    let root = detached("tmpfs", &[("size", "4k"), ("nr_inodes", "1"), ("mode", "0555")])?;
    let onto = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&root, c"", CWD, c"/", onto).step("mount an empty root")?;
    fchdir(&root).step("enter an empty root")?;
    pivot_root(c".", c".").step("change its root (is the host's root an initial ramdisk?)")?;
    unmount(c".", UnmountFlags::DETACH).step("let go of the host's files")
}

/// A proc file system of the calling process's pid namespace, without anything that is not a process; mounted nowhere.
pub(super) fn own_proc() -> Result<OwnedFd, JailError> {
    detached("proc", &[("subset", "pid"), ("hidepid", "invisible")])
}

fn detached(kind: &str, options: &[(&str, &str)]) -> Result<OwnedFd, JailError> {
    let fs = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).step("open a new file system")?;
    for (key, value) in options {
        fsconfig_set_string(&fs, *key, *value).step("set up a new file system")?;
    }
    fsconfig_set_flag(&fs, "ro").step("make a file system read-only")?;
    fsconfig_create(&fs).step("create a new file system")?;
    fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, HARMLESS).step("mount a new file system")
}
