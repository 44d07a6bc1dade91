//! `/dev/kvm` and virtual machines.

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;

use forkd_memory::GuestRam;
use kvm_bindings::{
    CpuId, KVM_CLOCK_TSC_STABLE, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE,
    KVM_MAX_CPUID_ENTRIES, kvm_clock_data, kvm_irqchip, kvm_userspace_memory_region,
};
use kvm_ioctls::{Cap, IoEventAddress, Kvm, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::eventfd::EventFd;

use crate::error::Asked;
use crate::{KvmError, Vcpu, VmState, kick};

/// Where KVM on Intel keeps three pages of its own, out of everybody's way.
const TSS_ADDRESS: usize = 0xfffb_d000;

/// An open `/dev/kvm`.
#[derive(Debug)]
pub struct Hypervisor {
    kvm: Arc<Kvm>,
}

impl Hypervisor {
    /// Opens `/dev/kvm`.
    ///
    /// # Errors
    /// It is missing, or may not be opened.
    pub fn open() -> Result<Self, KvmError> {
        Self::new(Self::open_device()?)
    }

    /// Opens `/dev/kvm` for [`Hypervisor::new`], maybe of another process.
    ///
    /// # Errors
    /// It is missing, or may not be opened.
    pub fn open_device() -> Result<OwnedFd, KvmError> {
        let fd = Kvm::open_with_cloexec(true).map_err(KvmError::Open)?;
        // SAFETY: the descriptor was just opened and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Takes an open `/dev/kvm`.
    ///
    /// # Errors
    /// The signal that interrupts vCPUs could not be given its handler.
    pub fn new(device: OwnedFd) -> Result<Self, KvmError> {
        kick::install()?;
        // SAFETY: the descriptor is /dev/kvm's and is owned by nobody else from here on.
        let kvm = unsafe { Kvm::from_raw_fd(device.into_raw_fd()) };
        Ok(Self { kvm: Arc::new(kvm) })
    }

    /// What this host can show a guest.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn supported_cpuid(&self) -> Result<CpuId, KvmError> {
        self.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).asked("list the processor features it supports")
    }

    /// Whether the local timer's deadline mode is there; older kernels do not say so in CPUID.
    pub fn has_tsc_deadline(&self) -> bool {
        self.kvm.check_extension(Cap::TscDeadlineTimer)
    }

    /// Makes a machine without RAM or vCPUs.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn create_vm(&self) -> Result<Vm, KvmError> {
        let fd = self.kvm.create_vm().asked("create a machine")?;
        fd.set_tss_address(TSS_ADDRESS).asked("place its own pages")?;
        Ok(Vm { fd, kvm: Arc::clone(&self.kvm) })
    }
}

/// One virtual machine.
#[derive(Debug)]
pub struct Vm {
    fd: VmFd,
    kvm: Arc<Kvm>,
}

impl Vm {
    /// Makes `ram` the machine's RAM. The machine must not outlive it; both live as long as the process does,
    /// or are dropped in that order.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn map_ram(&self, ram: &GuestRam) -> Result<(), KvmError> {
        for (slot, region) in (0u32..).zip(ram.iter()) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
            };
            // SAFETY: the range is a live mapping of exactly this size, owned by `ram`; the caller keeps it
            // mapped as long as the machine, and nobody holds Rust references into it.
            unsafe { self.fd.set_user_memory_region(region) }.asked("take the machine's RAM")?;
        }
        Ok(())
    }

    /// Gives the machine its interrupt controllers (two PICs, an IOAPIC, a LAPIC per vCPU made later).
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn create_irqchip(&self) -> Result<(), KvmError> {
        self.fd.create_irq_chip().asked("create the interrupt controllers")
    }

    /// Makes vCPU number `id`.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn create_vcpu(&self, id: u8) -> Result<Vcpu, KvmError> {
        let fd = self.fd.create_vcpu(u64::from(id)).asked("create a vCPU")?;
        Vcpu::new(fd, self.fd.run_size(), Arc::clone(&self.kvm))
    }

    /// A write to `event` raises interrupt line `gsi`.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn connect_irq(&self, event: &EventFd, gsi: u32) -> Result<(), KvmError> {
        self.fd.register_irqfd(event, gsi).asked("connect an interrupt line")
    }

    /// Raises and lowers interrupt line `gsi` once.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn pulse_irq(&self, gsi: u32) -> Result<(), KvmError> {
        for active in [true, false] {
            self.fd.set_irq_line(gsi, active).asked("ring an interrupt line")?;
        }
        Ok(())
    }

    /// The guest's write of `value` (32 bits) to `address` signals `event` without leaving KVM.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn connect_doorbell(&self, event: &EventFd, address: u64, value: u32) -> Result<(), KvmError> {
        self.fd.register_ioevent(event, &IoEventAddress::Mmio(address), value).asked("connect a doorbell")
    }

    /// Saves what belongs to the machine rather than to a vCPU or device. vCPUs stand still.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn save(&self) -> Result<VmState, KvmError> {
        let mut clock = self.fd.get_clock().asked("save its clock")?;
        clock.flags &= !KVM_CLOCK_TSC_STABLE;
        Ok(VmState {
            pic_master: self.irqchip(KVM_IRQCHIP_PIC_MASTER)?,
            pic_slave: self.irqchip(KVM_IRQCHIP_PIC_SLAVE)?,
            ioapic: self.irqchip(KVM_IRQCHIP_IOAPIC)?,
            clock_ns: clock.clock,
        })
    }

    /// Restores it. The vCPUs' time stamp counters must be set already.
    ///
    /// The clock is set without its realtime flag: the guest's monotonic time goes on where it stood, however
    /// long the snapshot lay on disk; its time of day is set by the agent.
    ///
    /// # Errors
    /// KVM's refusal.
    pub fn restore(&self, state: &VmState) -> Result<(), KvmError> {
        let VmState { pic_master, pic_slave, ioapic, clock_ns } = state;
        for chip in [pic_master, pic_slave, ioapic] {
            self.fd.set_irqchip(chip).asked("restore an interrupt controller")?;
        }
        let clock = kvm_clock_data { clock: *clock_ns, ..Default::default() };
        self.fd.set_clock(&clock).asked("restore its clock")
    }

    fn irqchip(&self, chip_id: u32) -> Result<kvm_irqchip, KvmError> {
        let mut chip = kvm_irqchip { chip_id, ..Default::default() };
        self.fd.get_irqchip(&mut chip).asked("save an interrupt controller")?;
        Ok(chip)
    }
}
