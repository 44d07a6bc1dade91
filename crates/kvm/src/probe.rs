//! Is this KVM usable? Small guests answer, one per item.
//!
//! `/dev/kvm` being there is not enough: some hosts interpret guests instruction by instruction and fail on
//! what every distribution kernel uses. Each item runs a few instructions in 64-bit mode; a guest that gets
//! through writes to [`PORT`].

use std::cell::Cell;

use forkd_memory::layout::Layout;
use forkd_memory::{GuestRam, map};
use kvm_bindings::kvm_regs;
use vm_memory::{Bytes, GuestAddress};

use crate::mode::{self, CODE_SELECTOR, Tables};
use crate::{Hypervisor, IoHandler, KvmError, Outcome};

/// Where a guest that got through writes.
const PORT: u16 = 0x10;
const CODE: u64 = 0x1000;
const HANDLER: u64 = 0x1800;
const IDT: u64 = 0x2000;
const TABLES: Tables = Tables { gdt: 0x3000, paging: 0x8000 };
const STACK: u64 = 0x7000;
const RAM_BYTES: u64 = 1 << 20;
/// Exits after which a guest that never gets through is given up.
const PATIENCE: u32 = 64;

/// One thing that ordinary guests need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    /// What it is called.
    pub name: &'static str,
    /// Whether the guest got through.
    pub ok: bool,
    /// What happened otherwise.
    pub detail: String,
}

/// The items and the guests that try them. A `hlt` ends each.
const PROGRAMS: [(&str, &[u8]); 4] = [
    // mov al, 1; out 0x10, al
    ("64-bit mode", &[0xb0, 0x01, 0xe6, 0x10, 0xf4]),
    // pxor xmm0, xmm0; pcmpeqd xmm1, xmm1; psubd xmm0, xmm1; movd eax, xmm0; cmp eax, 1; jne end; out 0x10, al
    (
        "SSE2",
        &[
            0x66, 0x0f, 0xef, 0xc0, 0x66, 0x0f, 0x76, 0xc9, 0x66, 0x0f, 0xfa, 0xc1, 0x66, 0x0f, 0x7e, 0xc0,
            0x83, 0xf8, 0x01, 0x75, 0x02, 0xe6, 0x10, 0xf4,
        ],
    ),
    // xor eax, eax; xor edx, edx; mov ebx, 7; xor ecx, ecx; lock cmpxchg16b [0x4000]; jnz end;
    // cmp qword [0x4000], 7; jne end; out 0x10, al
    (
        "cmpxchg16b",
        &[
            0x31, 0xc0, 0x31, 0xd2, 0xbb, 0x07, 0x00, 0x00, 0x00, 0x31, 0xc9, 0xf0, 0x48, 0x0f, 0xc7, 0x0c,
            0x25, 0x00, 0x40, 0x00, 0x00, 0x75, 0x0d, 0x48, 0x83, 0x3c, 0x25, 0x00, 0x40, 0x00, 0x00, 0x07,
            0x75, 0x02, 0xe6, 0x10, 0xf4,
        ],
    ),
    // int3, whose handler does out 0x10, al
    ("int3", &[0xcc, 0xf4]),
];

/// Tries every item.
///
/// # Errors
/// `/dev/kvm` cannot be opened, or not even an empty machine can be made.
pub fn probe() -> Result<Vec<Item>, KvmError> {
    let hypervisor = Hypervisor::open()?;
    PROGRAMS.iter().map(|(name, code)| try_program(&hypervisor, name, code)).collect()
}

fn try_program(hypervisor: &Hypervisor, name: &'static str, code: &[u8]) -> Result<Item, KvmError> {
    let Ok(ram) = map::anonymous(&Layout::new(RAM_BYTES)) else { return Err(KvmError::ListTooLong) };
    let vm = hypervisor.create_vm()?;
    vm.map_ram(&ram)?;
    let mut vcpu = vm.create_vcpu(0)?;
    vcpu.set_cpuid(&hypervisor.supported_cpuid()?)?;
    load(&ram, code).map_err(|_| KvmError::ListTooLong)?;
    let mut sregs = vcpu.sregs()?;
    mode::long_mode(&mut sregs, TABLES.paging, TABLES.gdt);
    (sregs.idt.base, sregs.idt.limit) = (IDT, 0xfff);
    vcpu.set_sregs(&sregs)?;
    vcpu.reset_fpu()?;
    vcpu.set_regs(&kvm_regs { rip: CODE, rsp: STACK, rflags: 2, ..Default::default() })?;

    let port = Port::default();
    let mut last = Outcome::Handled;
    for _ in 0..PATIENCE {
        last = vcpu.run(&port)?;
        if port.written.get() || matches!(last, Outcome::Ended(_)) {
            break;
        }
    }
    let ok = port.written.get();
    let detail = if ok { String::new() } else { format!("the guest stopped with {last:?}") };
    Ok(Item { name, ok, detail })
}

fn load(ram: &GuestRam, code: &[u8]) -> Result<(), vm_memory::GuestMemoryError> {
    mode::write_tables(ram, TABLES, 1)?;
    ram.write_slice(code, GuestAddress(CODE))?;
    ram.write_slice(&[0xe6, 0x10, 0xf4], GuestAddress(HANDLER))?;
    // Interrupt gate for vector 3: present, 64-bit, to HANDLER in the code segment.
    let gate = (HANDLER & 0xffff) | u64::from(CODE_SELECTOR) << 16 | 0x8e00 << 32;
    ram.write_obj(gate, GuestAddress(IDT + 3 * 16))
}

#[derive(Debug, Default)]
struct Port {
    written: Cell<bool>,
}

impl IoHandler for Port {
    fn port_read(&self, _: u16, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn port_write(&self, port: u16, _: &[u8]) {
        self.written.set(self.written.get() || port == PORT);
    }

    fn mmio_read(&self, _: u64, data: &mut [u8]) {
        data.fill(0xff);
    }

    fn mmio_write(&self, _: u64, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_answered_item_by_item() {
        if !forkd_testkit::guard::kvm() {
            return;
        }
        let items = probe().unwrap();
        assert_eq!(items.len(), PROGRAMS.len());
        assert!(items[0].ok, "every KVM reaches 64-bit mode: {items:?}");
    }
}
