//! The only crate that speaks KVM: VM, vCPU, exits, saved CPU state.
