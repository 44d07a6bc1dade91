//! The requests of `ioctl(2)` that this crate makes, for who allows a process no others.
//!
//! One list per time of a monitor's life. Numbers and argument types: Linux, include/uapi/linux/kvm.h.

use self::numbers::*;

mod numbers {
    use kvm_bindings::{
        KVMIO, kvm_clock_data, kvm_cpuid2, kvm_debugregs, kvm_fpu, kvm_ioeventfd, kvm_irq_level, kvm_irqchip,
        kvm_irqfd, kvm_lapic_state, kvm_mp_state, kvm_msr_list, kvm_msrs, kvm_pre_fault_memory, kvm_regs,
        kvm_sregs, kvm_userspace_memory_region, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
    };
    use vmm_sys_util::{ioctl_io_nr, ioctl_ior_nr, ioctl_iow_nr, ioctl_iowr_nr};

    ioctl_io_nr!(KVM_CREATE_VM, KVMIO, 0x01);
    ioctl_iowr_nr!(KVM_GET_MSR_INDEX_LIST, KVMIO, 0x02, kvm_msr_list);
    ioctl_io_nr!(KVM_CHECK_EXTENSION, KVMIO, 0x03);
    ioctl_io_nr!(KVM_GET_VCPU_MMAP_SIZE, KVMIO, 0x04);
    ioctl_io_nr!(KVM_CREATE_VCPU, KVMIO, 0x41);
    ioctl_iow_nr!(KVM_SET_USER_MEMORY_REGION, KVMIO, 0x46, kvm_userspace_memory_region);
    ioctl_io_nr!(KVM_SET_TSS_ADDR, KVMIO, 0x47);
    ioctl_io_nr!(KVM_CREATE_IRQCHIP, KVMIO, 0x60);
    ioctl_iow_nr!(KVM_IRQ_LINE, KVMIO, 0x61, kvm_irq_level);
    ioctl_iowr_nr!(KVM_GET_IRQCHIP, KVMIO, 0x62, kvm_irqchip);
    ioctl_ior_nr!(KVM_SET_IRQCHIP, KVMIO, 0x63, kvm_irqchip);
    ioctl_iow_nr!(KVM_IRQFD, KVMIO, 0x76, kvm_irqfd);
    ioctl_iow_nr!(KVM_IOEVENTFD, KVMIO, 0x79, kvm_ioeventfd);
    ioctl_iow_nr!(KVM_SET_CLOCK, KVMIO, 0x7b, kvm_clock_data);
    ioctl_ior_nr!(KVM_GET_CLOCK, KVMIO, 0x7c, kvm_clock_data);
    ioctl_io_nr!(KVM_RUN, KVMIO, 0x80);
    ioctl_ior_nr!(KVM_GET_REGS, KVMIO, 0x81, kvm_regs);
    ioctl_iow_nr!(KVM_SET_REGS, KVMIO, 0x82, kvm_regs);
    ioctl_ior_nr!(KVM_GET_SREGS, KVMIO, 0x83, kvm_sregs);
    ioctl_iow_nr!(KVM_SET_SREGS, KVMIO, 0x84, kvm_sregs);
    ioctl_iowr_nr!(KVM_GET_MSRS, KVMIO, 0x88, kvm_msrs);
    ioctl_iow_nr!(KVM_SET_MSRS, KVMIO, 0x89, kvm_msrs);
    ioctl_iow_nr!(KVM_SET_FPU, KVMIO, 0x8d, kvm_fpu);
    ioctl_ior_nr!(KVM_GET_LAPIC, KVMIO, 0x8e, kvm_lapic_state);
    ioctl_iow_nr!(KVM_SET_LAPIC, KVMIO, 0x8f, kvm_lapic_state);
    ioctl_iow_nr!(KVM_SET_CPUID2, KVMIO, 0x90, kvm_cpuid2);
    ioctl_ior_nr!(KVM_GET_MP_STATE, KVMIO, 0x98, kvm_mp_state);
    ioctl_iow_nr!(KVM_SET_MP_STATE, KVMIO, 0x99, kvm_mp_state);
    ioctl_ior_nr!(KVM_GET_VCPU_EVENTS, KVMIO, 0x9f, kvm_vcpu_events);
    ioctl_iow_nr!(KVM_SET_VCPU_EVENTS, KVMIO, 0xa0, kvm_vcpu_events);
    ioctl_ior_nr!(KVM_GET_DEBUGREGS, KVMIO, 0xa1, kvm_debugregs);
    ioctl_iow_nr!(KVM_SET_DEBUGREGS, KVMIO, 0xa2, kvm_debugregs);
    ioctl_io_nr!(KVM_SET_TSC_KHZ, KVMIO, 0xa2);
    ioctl_io_nr!(KVM_GET_TSC_KHZ, KVMIO, 0xa3);
    ioctl_ior_nr!(KVM_GET_XSAVE, KVMIO, 0xa4, kvm_xsave);
    ioctl_iow_nr!(KVM_SET_XSAVE, KVMIO, 0xa5, kvm_xsave);
    ioctl_ior_nr!(KVM_GET_XCRS, KVMIO, 0xa6, kvm_xcrs);
    ioctl_iow_nr!(KVM_SET_XCRS, KVMIO, 0xa7, kvm_xcrs);
    ioctl_io_nr!(KVM_KVMCLOCK_CTRL, KVMIO, 0xad);
    ioctl_iowr_nr!(KVM_PRE_FAULT_MEMORY, KVMIO, 0xd5, kvm_pre_fault_memory);
}

/// What running and saving a vCPU takes; entering the guest, which is nearly all of it, comes first.
pub fn of_vcpu() -> Vec<u64> {
    vec![
        KVM_RUN(),
        KVM_KVMCLOCK_CTRL(),
        KVM_GET_REGS(),
        KVM_GET_SREGS(),
        KVM_GET_XSAVE(),
        KVM_GET_XCRS(),
        KVM_GET_DEBUGREGS(),
        KVM_GET_LAPIC(),
        KVM_GET_MSR_INDEX_LIST(),
        KVM_GET_MSRS(),
        KVM_GET_VCPU_EVENTS(),
        KVM_GET_MP_STATE(),
        KVM_GET_TSC_KHZ(),
    ]
}

/// What serving and saving a machine takes that has all its parts.
pub fn of_serving() -> Vec<u64> {
    vec![KVM_IOEVENTFD(), KVM_GET_IRQCHIP(), KVM_GET_CLOCK()]
}

/// What building or restoring a machine takes.
pub fn of_building() -> Vec<u64> {
    vec![
        KVM_CREATE_VM(),
        KVM_CHECK_EXTENSION(),
        KVM_GET_VCPU_MMAP_SIZE(),
        KVM_SET_TSS_ADDR(),
        KVM_CREATE_IRQCHIP(),
        KVM_CREATE_VCPU(),
        KVM_SET_USER_MEMORY_REGION(),
        KVM_IRQ_LINE(),
        KVM_IRQFD(),
        KVM_SET_IRQCHIP(),
        KVM_SET_CLOCK(),
        KVM_SET_REGS(),
        KVM_SET_SREGS(),
        KVM_SET_MSRS(),
        KVM_SET_FPU(),
        KVM_SET_LAPIC(),
        KVM_SET_CPUID2(),
        KVM_SET_MP_STATE(),
        KVM_SET_VCPU_EVENTS(),
        KVM_SET_DEBUGREGS(),
        KVM_SET_TSC_KHZ(),
        KVM_SET_XSAVE(),
        KVM_SET_XCRS(),
        KVM_PRE_FAULT_MEMORY(),
    ]
}
