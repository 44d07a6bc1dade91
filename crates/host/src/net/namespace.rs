//! Network namespaces with names, as `ip netns` has them: a file below /run/netns over which one is mounted.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};
use std::thread;

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::NetError;

const FOLDER: &str = "/run/netns";

fn path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Makes a namespace of this name and does the first work in it, on a thread that ends with that. Where the work fails
/// nothing is left.
pub(super) fn create<T: Send>(
    name: &str,
    work: impl FnOnce() -> Result<T, NetError> + Send,
) -> Result<T, NetError> {
    let path = path(name);
    prepare_folder().map_err(NetError::kernel(format!("preparing {FOLDER}")))?;
    // A name that is taken is refused here.
    let file = OpenOptions::new().read(true).create_new(true).write(true).open(&path);
    file.map_err(NetError::kernel(format!("making {}", path.display())))?;
    let made = on_own_thread(|| {
        unshare(CloneFlags::CLONE_NEWNET)
            .map_err(|e| NetError::kernel("making a network namespace")(e.into()))?;
        let own = Some("/proc/thread-self/ns/net");
        mount(own, &path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|e| NetError::kernel(format!("mounting {}", path.display()))(e.into()))?;
        work()
    });
    if made.is_err() {
        // The first failure is told.
        let _ = remove(name);
    }
    made
}

/// Does something in the namespace of this name, on a thread that ends with that.
pub(super) fn within<T: Send>(
    name: &str,
    work: impl FnOnce() -> Result<T, NetError> + Send,
) -> Result<T, NetError> {
    let namespace = File::open(path(name)).map_err(|_| NetError::Gone(name.to_owned()))?;
    on_own_thread(|| {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|e| NetError::kernel(format!("entering {name}"))(e.into()))?;
        work()
    })
}

/// Takes the name away; the namespace goes with it once nothing in it is open. May be repeated.
pub(super) fn remove(name: &str) -> Result<(), NetError> {
    let path = path(name);
    // EINVAL: nothing is mounted there.
    while let Ok(()) = umount2(&path, MntFlags::MNT_DETACH) {}
    match fs::remove_file(&path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(NetError::kernel(format!("removing {}", path.display()))(e))
        }
        _ => Ok(()),
    }
}

/// The names that begin like this.
pub(super) fn list(prefix: &str) -> Vec<String> {
    let names = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// As `ip netns` does it: what is mounted below is seen in every mount namespace, and so is its end.
fn prepare_folder() -> io::Result<()> {
    fs::create_dir_all(FOLDER)?;
    let share =
        || mount(None::<&str>, FOLDER, None::<&str>, MsFlags::MS_SHARED | MsFlags::MS_REC, None::<&str>);
    if share().is_err() {
        mount(Some(FOLDER), FOLDER, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
        share()?;
    }
    Ok(())
}

/// A thread's namespace is its own, so whoever calls stays where it is.
fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T, NetError> + Send) -> Result<T, NetError> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".to_owned());
        let running = thread.spawn_scoped(scope, work).map_err(NetError::kernel("starting a thread"))?;
        running
            .join()
            .unwrap_or_else(|_| Err(NetError::kernel("work in a namespace")(io::ErrorKind::Other.into())))
    })
}

/// A knob of this thread's namespace, below /proc/sys/net. One that has the value already is not written.
pub(super) fn sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/{name}");
    if fs::read_to_string(&path)?.trim() == value {
        return Ok(());
    }
    fs::write(path, value)
}

/// This thread's namespace, to be named to others.
pub(super) fn own_namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// The number by which netlink is told of a namespace.
pub(super) fn number(namespace: BorrowedFd<'_>) -> RawFd {
    namespace.as_raw_fd()
}
