//! The only crate that speaks KVM.
//!
//! * [`Hypervisor`] opens `/dev/kvm` and makes [`Vm`]s;
//! * a [`Vm`] is given RAM, interrupts and I/O events, and makes [`Vcpu`]s;
//! * a [`Vcpu`] runs until something happens that is not plain I/O; I/O goes to an [`IoHandler`];
//! * [`VcpuState`] and [`VmState`] are the saved forms, saved and restored in the one right order;
//! * [`cpuid`] decides what processor a guest is shown and whether this host can show it;
//! * [`probe`] tells whether this KVM runs ordinary guests at all;
//! * [`calls`] lists what this crate asks of the kernel, for who allows nothing else.

pub mod calls;
pub mod cpuid;
mod early;
mod error;
mod kick;
pub mod mode;
mod msrs;
pub mod probe;
mod state;
mod vcpu;
mod vm;

pub use error::{KvmError, StateError};
pub use kick::Kicker;
pub use kvm_bindings::CpuId;
pub use state::{VcpuState, VmState};
pub use vcpu::{End, IoHandler, Outcome, Vcpu};
pub use vm::{Hypervisor, Vm};
