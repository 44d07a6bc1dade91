//! Where things lie in the guest's address space and which interrupt lines they have.
//!
//! Saved machines depend on these values: they may only grow, never move.

use forkd_devices::virtio::mmio::MMIO_LEN;
use forkd_kvm::mode::Tables;

/// Descriptor table and page tables of a booting vCPU.
pub const TABLES: Tables = Tables { gdt: 0x500, paging: 0x9000 };
/// GiB that the boot page tables map.
pub const BOOT_MAPPED_GIB: u64 = 4;
/// Linux' boot parameters ("zero page").
pub const ZERO_PAGE: u64 = 0x7000;
/// Top of the boot stack.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Kernel command line.
pub const CMDLINE: u64 = 0x2_0000;
/// Longest command line, including its NUL.
pub const CMDLINE_MAX: usize = 2048;
/// End of conventional memory.
pub const LOW_RAM_END: u64 = 0x9_fc00;
/// ACPI tables, where the kernel looks for them.
pub const ACPI: u64 = 0xe_0000;
/// End of the room for ACPI tables.
pub const ACPI_END: u64 = 0xf_f000;
/// The page that holds the VM generation id.
pub const GENERATION_PAGE: u64 = 0xf_f000;
/// First address of the kernel and of high memory.
pub const HIGH_RAM: u64 = 0x10_0000;

/// Registers of the first virtio device; the others follow.
pub const VIRTIO: u64 = 0xd000_0000;
/// Interrupt line of the first virtio device; the others follow.
pub const VIRTIO_GSI: u32 = 16;
/// Most virtio devices: the lines up to [`GENERATION_GSI`].
pub const VIRTIO_MAX: u32 = 7;
/// Interrupt line that announces a new generation id.
pub const GENERATION_GSI: u32 = 23;
/// Local interrupt controllers.
pub const LAPIC: u32 = 0xfee0_0000;
/// I/O interrupt controller.
pub const IOAPIC: u32 = 0xfec0_0000;

/// First serial port.
pub const SERIAL_PORT: u16 = 0x3f8;
/// Its interrupt line.
pub const SERIAL_GSI: u32 = 4;

/// Registers of virtio device number `index`.
pub const fn virtio_base(index: u32) -> u64 {
    VIRTIO + index as u64 * MMIO_LEN
}

const _: () = assert!(TABLES.paging + forkd_kvm::mode::paging_bytes(BOOT_MAPPED_GIB) <= CMDLINE);
const _: () = assert!(VIRTIO_GSI + VIRTIO_MAX <= GENERATION_GSI);
const _: () = assert!(VIRTIO >= forkd_memory::layout::HOLE_START);
