//! Register values of a vCPU that starts in 64-bit mode.

use forkd_memory::GuestRam;
use kvm_bindings::{kvm_segment, kvm_sregs};
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

/// Selector of the flat 64-bit code segment (as Linux' boot protocol wants it: `__BOOT_CS`).
pub const CODE_SELECTOR: u16 = 0x10;
/// Selector of the flat data segment (`__BOOT_DS`).
pub const DATA_SELECTOR: u16 = 0x18;
/// The descriptor table that goes with them: null, unused, code, data.
pub const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const CR4_OSFXSR: u64 = 1 << 9;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;

/// Puts `sregs` into 64-bit mode with the page tables at `cr3` and [`GDT`] at `gdt`. SSE is enabled, interrupts
/// have no table yet.
pub fn long_mode(sregs: &mut kvm_sregs, cr3: u64, gdt: u64) {
    let code = kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector: CODE_SELECTOR,
        type_: 0xb,
        present: 1,
        dpl: 0,
        db: 0,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: DATA_SELECTOR, type_: 0x3, db: 1, l: 0, ..code };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.fs, sregs.gs, sregs.ss) = (data, data, data, data, data);
    sregs.gdt.base = gdt;
    sregs.gdt.limit = 31;
    sregs.idt.base = 0;
    sregs.idt.limit = 0;
    sregs.cr0 = CR0_PE | CR0_ET | CR0_PG;
    sregs.cr3 = cr3;
    sregs.cr4 = CR4_PAE | CR4_OSFXSR;
    sregs.efer = EFER_LME | EFER_LMA;
}

/// Guest-physical addresses of the tables a vCPU starts with.
#[derive(Debug, Clone, Copy)]
pub struct Tables {
    /// [`GDT`].
    pub gdt: u64,
    /// Three pages and more: the top page table, the one below, and one directory per GiB.
    pub paging: u64,
}

/// Bytes of page tables that map `gib` GiB.
pub const fn paging_bytes(gib: u64) -> u64 {
    (2 + gib) * 0x1000
}

/// Writes [`GDT`] and page tables that map the first `gib` (at most 512) GiB one to one, in 2 MiB pages.
///
/// # Errors
/// The tables do not lie in RAM.
pub fn write_tables(ram: &GuestRam, tables: Tables, gib: u64) -> Result<(), GuestMemoryError> {
    const PRESENT_WRITABLE: u64 = 0b11;
    const LARGE: u64 = 1 << 7;
    for (index, descriptor) in (0u64..).zip(GDT) {
        ram.write_obj(descriptor, GuestAddress(tables.gdt + index * 8))?;
    }
    let (upper, directories) = (tables.paging + 0x1000, tables.paging + 0x2000);
    ram.write_obj(upper | PRESENT_WRITABLE, GuestAddress(tables.paging))?;
    for directory in 0..gib {
        let at = directories + directory * 0x1000;
        ram.write_obj(at | PRESENT_WRITABLE, GuestAddress(upper + directory * 8))?;
        for page in 0..512 {
            let target = (directory * 512 + page) << 21;
            ram.write_obj(target | LARGE | PRESENT_WRITABLE, GuestAddress(at + page * 8))?;
        }
    }
    Ok(())
}
