//! Becoming nobody: limits, user, capabilities. The order is in [`drop_all`].
//!
//! Sources: capabilities(7), user_namespaces(7), setrlimit(2), prctl(2).

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, UnshareFlags, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};

use super::{JailError, Step};

/// Descriptors: 1024 vsock connections, the files of a machine, and room for those of a snapshot.
const MAX_DESCRIPTORS: u64 = 2048;
/// Threads and processes of one user, which are those of one sandbox: the reaper, the event loop, a thread of KVM's,
/// eight vCPUs, and writers.
const MAX_TASKS: u64 = 24;
/// No memory layer and no disk is larger than this.
const MAX_FILE_BYTES: u64 = 1 << 40;

/// Takes every right from the calling process, which has one thread, and makes it user and group `id`.
pub(super) fn drop_all(id: u32) -> Result<(), JailError> {
    limit()?;
    empty_bounding_set()?;
    become_user(id)?;
    // The namespace makes its first process powerful within it, so capabilities go last. Where the host allows none to
    // those without rights the monitor does without.
    // SAFETY: the flags do not contain FILES, so no descriptor changes its meaning.
    if unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }.is_ok() {
        empty_bounding_set()?;
    }
    clear_ambient_capability_set().step("give up its ambient capabilities")?;
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, nothing).step("give up its capabilities")?;
    set_no_new_privs(true).step("promise never to gain rights")?;
    // Who becomes another user loses sight of itself in /proc; a writer must read its own page map.
    set_dumpable_behavior(DumpableBehavior::Dumpable).step("make its own page map readable")
}

fn limit() -> Result<(), JailError> {
    let limits = [
        (Resource::Core, 0),
        (Resource::Fsize, MAX_FILE_BYTES),
        (Resource::Nofile, MAX_DESCRIPTORS),
        (Resource::Nproc, MAX_TASKS),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Rtprio, 0),
    ];
    for (resource, most) in limits {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) }).step("limit itself")?;
    }
    Ok(())
}

/// Nothing that it might ever execute could gain a capability.
fn empty_bounding_set() -> Result<(), JailError> {
    for number in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The kernel knows no more.
            Err(Errno::INVAL) => break,
            Err(e) => return Err(e).step("give up capabilities for good"),
        }
    }
    Ok(())
}

fn become_user(id: u32) -> Result<(), JailError> {
    let (user, group) = (Uid::from_raw(id), Gid::from_raw(id));
    set_thread_groups(&[]).step("leave its groups")?;
    set_thread_res_gid(group, group, group).step("change its group")?;
    set_thread_res_uid(user, user, user).step("change its user")
}
