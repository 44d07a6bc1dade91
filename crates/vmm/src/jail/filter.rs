//! What each thread of a monitor may ask of the kernel. Source: Documentation/userspace-api/seccomp_filter.rst.
//!
//! Lists name calls of the C library's making beside our own: it allocates, starts threads and takes locks. Whatever
//! is not listed ends the process (SIGSYS), and the kernel logs number and process.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::RawFd;

use forkd_kvm::calls;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Allocating, locks, time, signals, ending: what any thread does.
const ANY_THREAD: [i64; 21] = [
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
];

/// What devices do with their descriptors, on the event loop, or on the thread of a vCPU whose guest sets one up or
/// resets it.
const DEVICES: [i64; 18] = [
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_fallocate,
    libc::SYS_lseek,
];

/// Serving the engine, and writing a machine out.
const EVENT_LOOP: [i64; 12] = [
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_ftruncate,
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_setpriority,
    libc::SYS_close_range,
    // A copy of the process does that first.
    libc::SYS_set_robust_list,
];

/// Starting the threads of a machine.
const THREADS: [i64; 3] = [libc::SYS_rseq, libc::SYS_sched_getaffinity, libc::SYS_clone3];

/// All that a reaper does once nothing but waiting is left.
const REAPER: [i64; 4] = [libc::SYS_wait4, libc::SYS_write, libc::SYS_exit_group, libc::SYS_rt_sigreturn];

/// What `fork(2)` of the C library is to the kernel.
const FORK: u64 = (libc::CLONE_CHILD_CLEARTID | libc::CLONE_CHILD_SETTID | libc::SIGCHLD) as u64;
/// What starting a thread is.
const THREAD: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u64;

/// A program of the kernel's filter.
#[derive(Debug)]
pub struct Filter(BpfProgram);

impl Filter {
    /// `calls` and nothing else; the rest ends the process.
    fn allowing(calls: Calls) -> Result<Self, BackendError> {
        Self::new(calls, SeccompAction::KillProcess, SeccompAction::Allow)
    }

    /// `calls`, whatever their arguments, and nothing else.
    pub(crate) fn only(calls: &[i64]) -> Result<Self, BackendError> {
        Self::allowing(Calls::default().all(calls))
    }

    fn new(calls: Calls, else_: SeccompAction, matched: SeccompAction) -> Result<Self, BackendError> {
        Ok(Self(SeccompFilter::new(calls.0, else_, matched, TargetArch::x86_64)?.try_into()?))
    }

    /// Binds the calling thread, and what it starts, for the rest of their lives. Allocates nothing.
    pub(crate) fn bind(&self) -> io::Result<()> {
        seccompiler::apply_filter(&self.0).map_err(|e| match e {
            seccompiler::Error::Prctl(e) | seccompiler::Error::Seccomp(e) => e,
            _ => io::ErrorKind::InvalidInput.into(),
        })
    }
}

/// The filters of one monitor.
#[derive(Debug)]
pub struct Rules(Option<Box<Filters>>);

#[derive(Debug)]
struct Filters {
    /// The C library starts threads by `clone3`, whose flags lie in memory where no filter can look, unless the kernel
    /// does not know it.
    old_kernel: Filter,
    building: Filter,
    serving: Filter,
    vcpu: std::sync::Arc<Filter>,
}

impl Rules {
    /// For the calling process, which reaches its page map through descriptor `proc_dir`.
    pub(super) fn new(proc_dir: RawFd) -> Result<Self, BackendError> {
        let clone3 = Calls::default().all(&[libc::SYS_clone3]);
        let unknown = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
        Ok(Self(Some(Box::new(Filters {
            old_kernel: Filter::new(clone3, SeccompAction::Allow, unknown)?,
            building: Filter::allowing(building(proc_dir)?)?,
            serving: Filter::allowing(serving(proc_dir)?)?,
            vcpu: Filter::allowing(vcpu()?)?.into(),
        }))))
    }

    /// None at all.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Binds the monitor until it has a machine.
    pub(super) fn bind_building(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |filters| {
            filters.old_kernel.bind()?;
            filters.building.bind()
        })
    }

    /// Binds the event loop of a machine that has all its threads.
    ///
    /// # Errors
    /// The kernel's refusal; the machine must not run then.
    pub fn bind_serving(&self) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |filters| filters.serving.bind())
    }

    /// What the thread of a vCPU is to bind itself by.
    pub(crate) fn of_vcpu(&self) -> Option<std::sync::Arc<Filter>> {
        self.0.as_ref().map(|filters| std::sync::Arc::clone(&filters.vcpu))
    }
}

/// What a reaper is bound by.
pub(super) fn of_reaper() -> Result<Filter, BackendError> {
    Filter::only(&REAPER)
}

fn building(proc_dir: RawFd) -> Result<Calls, BackendError> {
    let ioctls: Vec<u64> =
        [calls::of_vcpu(), calls::of_serving(), calls::of_building()].into_iter().flatten().collect();
    event_loop(proc_dir)?.ioctls(&ioctls)?.all(&THREADS).one_of(libc::SYS_clone, 0, &[THREAD])
}

fn serving(proc_dir: RawFd) -> Result<Calls, BackendError> {
    event_loop(proc_dir)?.ioctls(&calls::of_serving())
}

fn event_loop(proc_dir: RawFd) -> Result<Calls, BackendError> {
    let proc_dir = u64::from(proc_dir.unsigned_abs());
    let read_only = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    thread()?
        .all(&DEVICES)
        .all(&EVENT_LOOP)
        .ioctls(&[libc::FIONBIO])?
        .rule(libc::SYS_openat, &[is(0, proc_dir)?, is(2, read_only)?])?
        .one_of(libc::SYS_clone, 0, &[FORK])?
        // A connection to itself, by which the guard has a forgotten workload thawed.
        .one_of(libc::SYS_socketpair, 0, &[libc::AF_UNIX as u64])?
        .one_of(libc::SYS_setsockopt, 2, &[libc::SO_RCVTIMEO as u64, libc::SO_SNDTIMEO as u64])?
        .one_of(libc::SYS_fcntl, 1, &[libc::F_GETFD as u64, libc::F_DUPFD_CLOEXEC as u64])
}

fn vcpu() -> Result<Calls, BackendError> {
    // Entering the guest comes first, by far the most frequent.
    thread()?.all(&DEVICES).ioctls(&calls::of_vcpu())?.ioctls(&[libc::FIONBIO])
}

/// Memory that cannot be executed, signals to oneself, further filters.
fn thread() -> Result<Calls, BackendError> {
    let this = u64::from(std::process::id());
    let names_and_promises = [libc::PR_SET_NAME as u64, libc::PR_SET_NO_NEW_PRIVS as u64, PR_SET_VMA];
    Calls::default()
        .all(&ANY_THREAD)
        .rule(libc::SYS_mmap, &[lacks(2, libc::PROT_EXEC as u64)?])?
        .rule(libc::SYS_mprotect, &[lacks(2, libc::PROT_EXEC as u64)?])?
        .rule(libc::SYS_tgkill, &[is(0, this)?])?
        .rule(libc::SYS_seccomp, &[is(0, libc::SECCOMP_SET_MODE_FILTER.into())?, is(1, 0)?])?
        .one_of(libc::SYS_prctl, 0, &names_and_promises)
}

/// Gives a mapping a name; the C library does so where it is told to.
const PR_SET_VMA: u64 = 0x5356_4d41;

/// Allowed calls; one without rules is allowed whatever its arguments.
#[derive(Debug, Default)]
struct Calls(BTreeMap<i64, Vec<SeccompRule>>);

impl Calls {
    fn all(mut self, calls: &[i64]) -> Self {
        self.0.extend(calls.iter().map(|&call| (call, Vec::new())));
        self
    }

    /// Allows `call` where all conditions hold.
    fn rule(mut self, call: i64, conditions: &[SeccompCondition]) -> Result<Self, BackendError> {
        self.0.entry(call).or_default().push(SeccompRule::new(conditions.to_vec())?);
        Ok(self)
    }

    /// Allows `call` where argument number `argument` is one of `values`.
    fn one_of(self, call: i64, argument: u8, values: &[u64]) -> Result<Self, BackendError> {
        values.iter().try_fold(self, |calls, &value| calls.rule(call, &[is(argument, value)?]))
    }

    fn ioctls(self, requests: &[u64]) -> Result<Self, BackendError> {
        self.one_of(libc::SYS_ioctl, 1, requests)
    }
}

fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn lacks(argument: u8, bits: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits), 0)
}
