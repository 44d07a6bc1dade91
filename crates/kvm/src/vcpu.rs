//! vCPUs: running, saving, restoring.

use std::sync::Arc;

use kvm_bindings::{
    CpuId, KVM_SYSTEM_EVENT_RESET, KVM_SYSTEM_EVENT_SHUTDOWN, kvm_cpuid_entry2, kvm_fpu, kvm_regs, kvm_run,
    kvm_sregs,
};
use kvm_ioctls::{Cap, Kvm, VcpuExit, VcpuFd};

use crate::error::Asked;
use crate::{Kicker, KvmError, StateError, VcpuState, early, msrs};

/// What the guest's reads and writes outside RAM go to.
pub trait IoHandler {
    /// `in`: fill `data`.
    fn port_read(&self, port: u16, data: &mut [u8]);
    /// `out`.
    fn port_write(&self, port: u16, data: &[u8]);
    /// A load outside RAM: fill `data`.
    fn mmio_read(&self, address: u64, data: &mut [u8]);
    /// A store outside RAM.
    fn mmio_write(&self, address: u64, data: &[u8]);
}

/// Why [`Vcpu::run`] came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// I/O was handled; run again.
    Handled,
    /// It was kicked or a signal came.
    Interrupted,
    /// It cannot go on.
    Ended(End),
}

/// Why a vCPU cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The guest halted for good (only without interrupt controllers).
    Halt,
    /// The guest asked to be powered off or reset.
    Shutdown,
    /// A triple fault, an instruction KVM cannot carry out, ...
    Fault(String),
}

/// One vCPU.
#[derive(Debug)]
pub struct Vcpu {
    fd: VcpuFd,
    kicker: Kicker,
    kvm: Arc<Kvm>,
    /// What the guest was shown. KVM's own record has bits in it that follow the guest's state.
    shown: Vec<kvm_cpuid_entry2>,
}

/// Keeps the pages that are shared with KVM out of copies of this process: they would keep the vCPU, and with it the
/// whole virtual machine, alive after the process has ended.
fn keep_from_copies(run: &mut kvm_run, bytes: usize) -> Result<(), KvmError> {
    // SAFETY: `run` is the start of a mapping of `bytes` bytes that `VcpuFd` made and keeps; the advice changes nothing
    // for this process.
    match unsafe { libc::madvise(std::ptr::from_mut(run).cast(), bytes, libc::MADV_DONTFORK) } {
        0 => Ok(()),
        _ => Err(kvm_ioctls::Error::last()).asked("keep a vCPU out of copies of this process"),
    }
}

impl Vcpu {
    pub(crate) fn new(mut fd: VcpuFd, run_bytes: usize, kvm: Arc<Kvm>) -> Result<Self, KvmError> {
        keep_from_copies(fd.get_kvm_run(), run_bytes)?;
        let kicker = Kicker::new(&raw mut fd.get_kvm_run().immediate_exit);
        Ok(Self { fd, kicker, kvm, shown: Vec::new() })
    }

    /// Enters `len` bytes of RAM at `start` into the guest's page tables; false where that cannot be done (before
    /// Linux 6.10), which costs nothing but the time it would have saved.
    pub fn map_early(&self, start: u64, len: u64) -> bool {
        early::map(&self.fd, start, len)
    }

    /// What gets this vCPU out of the guest.
    pub fn kicker(&self) -> Kicker {
        self.kicker.clone()
    }

    /// Names the calling thread as the one that runs this vCPU.
    pub fn attach(&self) {
        self.kicker.attach();
    }

    /// Forgets earlier kicks.
    pub fn clear_kick(&self) {
        self.kicker.clear();
    }

    /// Runs until the next exit.
    ///
    /// # Errors
    /// KVM's refusal to run at all.
    pub fn run(&mut self, io: &impl IoHandler) -> Result<Outcome, KvmError> {
        let exit = match self.fd.run() {
            Ok(exit) => exit,
            Err(e) if matches!(e.errno(), libc::EINTR | libc::EAGAIN) => return Ok(Outcome::Interrupted),
            Err(source) => return Err(KvmError::Ioctl { what: "run a vCPU", source }),
        };
        match exit {
            VcpuExit::IoIn(port, data) => io.port_read(port, data),
            VcpuExit::IoOut(port, data) => io.port_write(port, data),
            VcpuExit::MmioRead(address, data) => io.mmio_read(address, data),
            VcpuExit::MmioWrite(address, data) => io.mmio_write(address, data),
            VcpuExit::Intr | VcpuExit::IrqWindowOpen => return Ok(Outcome::Interrupted),
            other => {
                let end = end_of(&other);
                return Ok(Outcome::Ended(self.with_detail(end)));
            }
        }
        Ok(Outcome::Handled)
    }

    /// Completes the port or MMIO access that the last exit was about, without running the guest: its result
    /// reaches the registers only on the next entry, and saved registers must have it.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn complete_io(&mut self, io: &impl IoHandler) -> Result<(), KvmError> {
        self.kicker.kick_self();
        while self.run(io)? == Outcome::Handled {}
        Ok(())
    }

    /// Shows the guest this processor; before the first run.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn set_cpuid(&mut self, cpuid: &CpuId) -> Result<(), KvmError> {
        self.fd.set_cpuid2(cpuid).asked("show the guest its processor")?;
        self.shown = cpuid.as_slice().to_vec();
        Ok(())
    }

    /// General registers of a vCPU that boots.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn set_regs(&self, regs: &kvm_regs) -> Result<(), KvmError> {
        self.fd.set_regs(regs).asked("set the registers")
    }

    /// General registers.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn regs(&self) -> Result<kvm_regs, KvmError> {
        self.fd.get_regs().asked("read the registers")
    }

    /// System registers.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn sregs(&self) -> Result<kvm_sregs, KvmError> {
        self.fd.get_sregs().asked("read the system registers")
    }

    /// System registers of a vCPU that boots.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn set_sregs(&self, sregs: &kvm_sregs) -> Result<(), KvmError> {
        self.fd.set_sregs(sregs).asked("set the system registers")
    }

    /// Floating-point state as after power-on.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn reset_fpu(&self) -> Result<(), KvmError> {
        let fpu = kvm_fpu { fcw: 0x37f, mxcsr: 0x1f80, ..Default::default() };
        self.fd.set_fpu(&fpu).asked("reset the floating-point unit")
    }

    /// Memory types and string instructions as firmware leaves them: caching on, fast strings on.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn set_firmware_registers(&self) -> Result<(), KvmError> {
        msrs::set_firmware_values(&self.fd)
    }

    /// Saves everything. The vCPU stands still and its last I/O is complete.
    ///
    /// `mp_state` comes first because reading it delivers pending INIT and SIPI events; `events` come last
    /// because reading registers may still move a pending exception.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn save(&self) -> Result<VcpuState, KvmError> {
        let mp_state = self.fd.get_mp_state().asked("save the run state")?;
        let regs = self.regs()?;
        let sregs = self.sregs()?;
        let xsave = self.fd.get_xsave().asked("save the floating-point state")?;
        let xcrs = self.fd.get_xcrs().asked("save the extended control registers")?;
        let debug = self.fd.get_debug_regs().asked("save the debug registers")?;
        let lapic = self.fd.get_lapic().asked("save the local interrupt controller")?;
        let msrs = msrs::save(&self.fd, &msrs::list(&self.kvm)?)?;
        let events = self.fd.get_vcpu_events().asked("save pending events")?;
        Ok(VcpuState {
            cpuid: self.shown.clone(),
            tsc_khz: self.fd.get_tsc_khz().unwrap_or(0),
            regs,
            sregs,
            xsave: Box::new(xsave),
            xcrs,
            debug,
            lapic: Box::new(lapic),
            msrs,
            events,
            mp_state,
        })
    }

    /// Takes on saved state; once, before the first run.
    ///
    /// The order matters: the counter's speed before its value; system registers before the LAPIC (they place
    /// it) and that before the registers of its timer; the counter before the deadline that is measured by it;
    /// registers before pending events, which setting them would drop.
    ///
    /// # Errors
    /// State that this host cannot take on.
    pub fn restore(&mut self, state: &VcpuState) -> Result<(), StateError> {
        let VcpuState { cpuid, tsc_khz, regs, sregs, xsave, xcrs, debug, lapic, msrs, events, mp_state } =
            state;
        self.set_cpuid(&CpuId::from_entries(cpuid).map_err(|_| KvmError::ListTooLong)?)?;
        self.restore_tsc_speed(*tsc_khz)?;
        self.fd.set_mp_state(*mp_state).asked("restore the run state")?;
        self.set_regs(regs)?;
        self.set_sregs(sregs)?;
        // SAFETY: the state holds the fixed 4096 bytes of `kvm_xsave`; the features that would need more (AMX)
        // are only granted to processes that ask the kernel for them, which this one does not.
        unsafe { self.fd.set_xsave(xsave) }.asked("restore the floating-point state")?;
        self.fd.set_xcrs(xcrs).asked("restore the extended control registers")?;
        self.fd.set_debug_regs(debug).asked("restore the debug registers")?;
        self.fd.set_lapic(lapic).asked("restore the local interrupt controller")?;
        msrs::restore(&self.fd, msrs)?;
        self.fd.set_vcpu_events(events).asked("restore pending events")?;
        Ok(())
    }

    /// Tells the guest's watchdogs that it was stopped by its host. Guests without kvm-clock have nothing to be
    /// told, which KVM reports as an error and is none.
    pub fn forgive_pause(&self) {
        let _ = self.fd.kvmclock_ctrl();
    }

    fn restore_tsc_speed(&self, saved: u32) -> Result<(), StateError> {
        let host = self.fd.get_tsc_khz().unwrap_or(0);
        if saved == 0 || host == 0 || u64::from(saved.abs_diff(host)) * 1_000_000 <= u64::from(saved) * 250 {
            return Ok(());
        }
        if !self.kvm.check_extension(Cap::TscControl) {
            return Err(StateError::TscUnfit { saved, host });
        }
        self.fd.set_tsc_khz(saved).map_err(|_| StateError::TscUnfit { saved, host })
    }

    fn with_detail(&mut self, end: End) -> End {
        let End::Fault(what) = end else { return end };
        let at = self.regs().map_or_else(|_| "unknown".into(), |r| format!("{:#x}", r.rip));
        let run = self.fd.get_kvm_run();
        if run.exit_reason != kvm_bindings::KVM_EXIT_INTERNAL_ERROR {
            return End::Fault(format!("{what} at instruction {at}"));
        }
        // SAFETY: for this exit reason KVM filled the `internal` member of the union.
        let suberror = unsafe { run.__bindgen_anon_1.internal.suberror };
        End::Fault(format!("{what} (suberror {suberror}) at instruction {at}"))
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.kicker.retire();
    }
}

fn end_of(exit: &VcpuExit<'_>) -> End {
    match exit {
        VcpuExit::Hlt => End::Halt,
        VcpuExit::SystemEvent(KVM_SYSTEM_EVENT_SHUTDOWN | KVM_SYSTEM_EVENT_RESET, _) => End::Shutdown,
        VcpuExit::Shutdown => End::Fault("triple fault".into()),
        VcpuExit::InternalError => End::Fault("KVM internal error".into()),
        VcpuExit::FailEntry(reason, _) => End::Fault(format!("entry refused, reason {reason:#x}")),
        other => End::Fault(format!("unexpected exit {other:?}")),
    }
}
