//! Entering memory into a guest's page tables before it is touched.
//!
//! A guest that runs for the first time leaves KVM once for each page that it touches. Pages that are known
//! beforehand are entered in one call. Source: Documentation/virt/kvm/api.rst, `KVM_PRE_FAULT_MEMORY` (Linux 6.10).

use std::io;

use kvm_bindings::{KVMIO, kvm_pre_fault_memory};
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl_with_mut_ref;
use vmm_sys_util::ioctl_iowr_nr;

ioctl_iowr_nr!(KVM_PRE_FAULT_MEMORY, KVMIO, 0xd5, kvm_pre_fault_memory);

/// Calls for one range that may end early: a signal came, or the page tables changed meanwhile.
const PATIENCE: u32 = 16;

/// Enters what can be entered; false where that is not to be had. The guest's own touch does the same later.
pub(crate) fn map(vcpu: &VcpuFd, gpa: u64, size: u64) -> bool {
    let mut range = kvm_pre_fault_memory { gpa, size, ..Default::default() };
    for _ in 0..PATIENCE {
        if range.size == 0 {
            return true;
        }
        // SAFETY: the descriptor is a vCPU's, and the kernel reads and writes just this structure, in which it says
        // how far it came.
        let done = unsafe { ioctl_with_mut_ref(vcpu, KVM_PRE_FAULT_MEMORY(), &mut range) };
        if done < 0 && !may_go_on(&io::Error::last_os_error()) {
            return false;
        }
    }
    range.size == 0
}

fn may_go_on(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}
