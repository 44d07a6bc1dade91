//! Saved forms of vCPUs and machines: KVM's own plain structures, each field named.

use kvm_bindings::{
    kvm_cpuid_entry2, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry, kvm_regs,
    kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use serde::{Deserialize, Serialize};

/// Everything KVM knows of one vCPU.
#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    /// What the guest was shown.
    pub cpuid: Vec<kvm_cpuid_entry2>,
    /// Speed of the time stamp counter; 0 where the kernel does not say.
    pub tsc_khz: u32,
    /// General registers.
    pub regs: kvm_regs,
    /// System registers.
    pub sregs: kvm_sregs,
    /// Floating-point and vector state.
    pub xsave: Box<kvm_xsave>,
    /// Extended control registers.
    pub xcrs: kvm_xcrs,
    /// Debug registers.
    pub debug: kvm_debugregs,
    /// Local interrupt controller.
    pub lapic: Box<kvm_lapic_state>,
    /// Model-specific registers, in the order in which they are restored.
    pub msrs: Vec<kvm_msr_entry>,
    /// Pending exceptions and interrupts.
    pub events: kvm_vcpu_events,
    /// Running, halted, waiting for start-up.
    pub mp_state: kvm_mp_state,
}

/// Everything KVM knows of the machine around its vCPUs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct VmState {
    /// First legacy interrupt controller.
    pub pic_master: kvm_irqchip,
    /// Second one.
    pub pic_slave: kvm_irqchip,
    /// I/O interrupt controller.
    pub ioapic: kvm_irqchip,
    /// kvm-clock, nanoseconds.
    pub clock_ns: u64,
}
