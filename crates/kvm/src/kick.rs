//! Getting a vCPU out of `KVM_RUN` from another thread.
//!
//! The kicker sets `immediate_exit` in the shared `kvm_run` page and then signals the thread. Whichever side of
//! entering the guest the vCPU is on, it comes out: before, KVM sees the flag; inside, the signal interrupts.
//! Source: Documentation/virt/kvm/api.rst, section 5, `immediate_exit`.

use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

use crate::KvmError;

/// Kicks one vCPU. Clones kick the same one.
#[derive(Debug, Clone)]
pub struct Kicker {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// `kvm_run.immediate_exit`, or `None` once the vCPU is gone.
    flag: Mutex<Option<Flag>>,
    /// Kernel id of the thread that runs the vCPU; 0 for none yet.
    thread: AtomicI32,
}

#[derive(Debug, Clone, Copy)]
struct Flag(*const AtomicU8);

// SAFETY: the pointer leads into the `kvm_run` page, which both kernel and threads access by atomic byte
// operations only; `Kicker::retire` removes it before the page is unmapped.
unsafe impl Send for Flag {}

impl Kicker {
    /// For the flag at `immediate_exit`, which must stay mapped until [`Kicker::retire`].
    pub(crate) fn new(immediate_exit: *mut u8) -> Self {
        let flag = Flag(immediate_exit.cast_const().cast());
        Self { shared: Arc::new(Shared { flag: Mutex::new(Some(flag)), thread: AtomicI32::new(0) }) }
    }

    /// Interrupts the vCPU, now or at its next entry.
    pub fn kick(&self) {
        self.set(1);
        let thread = self.shared.thread.load(Ordering::SeqCst);
        if thread != 0 {
            signal_thread(thread);
        }
    }

    /// Makes the calling thread's own next entry come straight back.
    pub(crate) fn kick_self(&self) {
        self.set(1);
    }

    /// Lets the vCPU enter the guest again.
    pub(crate) fn clear(&self) {
        self.set(0);
    }

    /// Names the calling thread as the one that runs the vCPU.
    pub(crate) fn attach(&self) {
        // SAFETY: gettid has no preconditions.
        let thread = unsafe { libc::gettid() };
        self.shared.thread.store(thread, Ordering::SeqCst);
    }

    /// Forgets the flag: the vCPU is about to be unmapped.
    pub(crate) fn retire(&self) {
        self.shared.thread.store(0, Ordering::SeqCst);
        *self.shared.flag.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn set(&self, value: u8) {
        if let Some(flag) = *self.shared.flag.lock().unwrap_or_else(PoisonError::into_inner) {
            // SAFETY: the page is mapped as long as the flag is there, and the lock is held.
            let flag = unsafe { &*flag.0 };
            flag.store(value, Ordering::SeqCst);
        }
    }
}

fn signal_thread(thread: i32) {
    // SAFETY: getpid has no preconditions.
    let process = unsafe { libc::getpid() };
    // SAFETY: tgkill only fails where the thread is gone, which needs no kick.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, SIGRTMIN()) };
}

/// Installs the handler of the kicking signal; once per process.
pub(crate) fn install() -> Result<(), KvmError> {
    extern "C" fn nothing(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    register_signal_handler(SIGRTMIN(), nothing).map_err(KvmError::Signal)
}
