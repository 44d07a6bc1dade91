//! Starting a process: clone3 straight into its cgroup, then only system calls until exec.
//!
//! The standard library's way would enter the cgroup by writing to `cgroup.procs`, which waits for an RCU grace
//! period (milliseconds in an idle guest) on every start; `CLONE_INTO_CGROUP` does not. And because the child of
//! a process with several threads may take no lock, everything that allocates happens before the clone.

use std::ffi::{CString, c_char, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// Descriptors handed to a child are first moved here or above, so that placing one never overwrites another.
const LIFTED: RawFd = 64;
/// linux/sched.h; beyond the range of the C library's type.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
/// linux/close_range.h.
const CLOSE_RANGE_CLOEXEC: c_long = 4;

/// Who a process runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// All that a child needs, made ready before it exists.
#[derive(Debug)]
pub(crate) struct Launch<'a> {
    /// Absolute, or relative to `cwd`.
    pub(crate) program: CString,
    pub(crate) args: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) cwd: CString,
    /// Nothing is changed where absent.
    pub(crate) credentials: Option<Credentials>,
    /// Descriptor `n` of the child is `files[n]`; everything above is closed.
    pub(crate) files: Vec<BorrowedFd<'a>>,
    /// Descriptor 0 becomes the controlling terminal.
    pub(crate) terminal: bool,
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
}

/// A child that was cloned; whether exec worked is told by `failure`.
#[derive(Debug)]
pub(crate) struct Launched {
    pub(crate) pid: i32,
    /// Ends without a byte once exec succeeded, else carries an errno as four bytes.
    pub(crate) failure: OwnedFd,
}

/// Pointers and numbers that the child reads; all memory behind them is owned by the caller's frame.
struct Plan<'a> {
    program: *const c_char,
    args: *const *const c_char,
    env: *const *const c_char,
    cwd: *const c_char,
    files: &'a [RawFd],
    credentials: Option<(u32, u32, *const u32, usize)>,
    terminal: bool,
    failure: RawFd,
}

/// Clones the child. Returns as soon as it exists.
pub(crate) fn launch(launch: &Launch<'_>) -> io::Result<Launched> {
    let (failure, failure_write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let lifted = launch.files.iter().map(lift).collect::<io::Result<Vec<OwnedFd>>>()?;
    let failure_write = lift(&failure_write)?;
    let files: Vec<RawFd> = lifted.iter().map(AsRawFd::as_raw_fd).collect();
    let args = pointers(&launch.args);
    let env = pointers(&launch.env);
    let plan = Plan {
        program: launch.program.as_ptr(),
        args: args.as_ptr(),
        env: env.as_ptr(),
        cwd: launch.cwd.as_ptr(),
        files: &files,
        credentials: launch.credentials.as_ref().map(|c| (c.uid, c.gid, c.groups.as_ptr(), c.groups.len())),
        terminal: launch.terminal,
        failure: failure_write.as_raw_fd(),
    };
    let old_mask = block_all_signals()?;
    let cloned = clone_process(launch.cgroup.map(|fd| fd.as_raw_fd()));
    if let Ok(0) = cloned {
        // SAFETY: this is the child; `plan` and all it points to were copied with the address space.
        unsafe { run_child(&plan) }
    }
    old_mask.thread_set_mask()?;
    Ok(Launched { pid: cloned?, failure })
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

fn lift(fd: &impl AsRawFd) -> io::Result<OwnedFd> {
    // SAFETY: the command takes an integer; a bad descriptor is reported as an error.
    let raw = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LIFTED) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// No handler of ours may run in the child: it would share our self-pipe.
fn block_all_signals() -> io::Result<nix::sys::signal::SigSet> {
    use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
    let mut old = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut old))?;
    Ok(old)
}

/// Like fork, into a cgroup. 0 in the child.
fn clone_process(cgroup: Option<RawFd>) -> io::Result<i32> {
    // SAFETY: clone_args is a struct of integers, for which all zeroes is a valid value.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(fd) = cgroup {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = fd as u64;
    }
    // SAFETY: without CLONE_VM the child has a copy of the address space and of this stack; the size matches the struct.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(pid).map_err(io::Error::other) }
}

/// The child's whole life before exec.
///
/// # Safety
/// To be called in a process just cloned, with a plan whose pointers are valid there. Takes no lock, allocates nothing.
unsafe fn run_child(plan: &Plan<'_>) -> ! {
    // SAFETY: the caller's promise is passed on.
    let errno = unsafe { prepare_and_exec(plan) };
    // SAFETY: writes four bytes from a local; the descriptor stayed open, being above all targets.
    unsafe { libc::syscall(libc::SYS_write, plan.failure, &raw const errno, size_of::<c_int>()) };
    // SAFETY: ends the process without running anything of the parent's.
    unsafe { libc::syscall(libc::SYS_exit_group, 127) };
    loop {
        std::hint::spin_loop();
    }
}

/// One raw system call; the errno on failure. Raw because the C library's set*id functions
/// signal all threads, which a freshly cloned child does not have.
macro_rules! attempt {
    ($($argument:expr),+) => {{
        // SAFETY: integers, and pointers that the caller of prepare_and_exec vouches for.
        if unsafe { libc::syscall($($argument),+) } < 0 {
            return errno();
        }
    }};
}

fn errno() -> c_int {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns the errno of the step that failed.
///
/// # Safety
/// As [`run_child`].
unsafe fn prepare_and_exec(plan: &Plan<'_>) -> c_int {
    reset_signals();
    attempt!(libc::SYS_setsid);
    for (target, source) in (0 as c_long..).zip(plan.files) {
        attempt!(libc::SYS_dup3, c_long::from(*source), target, 0 as c_long);
    }
    let first_unused = plan.files.len() as c_long;
    attempt!(libc::SYS_close_range, first_unused, c_long::from(u32::MAX), CLOSE_RANGE_CLOEXEC);
    if plan.terminal {
        attempt!(libc::SYS_ioctl, 0 as c_long, libc::TIOCSCTTY as c_long, 0 as c_long);
    }
    if let Some((uid, gid, groups, group_count)) = plan.credentials {
        let (uid, gid) = (c_long::from(uid), c_long::from(gid));
        attempt!(libc::SYS_setgroups, group_count as c_long, groups);
        attempt!(libc::SYS_setresgid, gid, gid, gid);
        attempt!(libc::SYS_setresuid, uid, uid, uid);
    }
    attempt!(libc::SYS_chdir, plan.cwd);
    let unblocked: u64 = 0;
    let set_mask = libc::SIG_SETMASK as c_long;
    attempt!(
        libc::SYS_rt_sigprocmask,
        set_mask,
        &raw const unblocked,
        ptr::null::<u64>(),
        size_of::<u64>() as c_long
    );
    attempt!(libc::SYS_execve, plan.program, plan.args, plan.env);
    libc::EIO
}

/// Exec resets handlers but keeps what is ignored: SIGPIPE by this program, SIGHUP under nohup. Raw, because the C
/// library keeps 32 and 33 to itself.
fn reset_signals() {
    // struct kernel_sigaction: handler (0 is the default), flags, restorer, mask.
    let default = [0_u64; 4];
    for signal in 1..=64 as c_long {
        // SAFETY: no handler is installed, and the kernel reads 32 bytes; SIGKILL and SIGSTOP fail harmlessly.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default,
                ptr::null::<u64>(),
                size_of::<u64>(),
            )
        };
    }
}
