//! Loading a kernel as a boot loader would.
//!
//! Source: Documentation/arch/x86/boot.rst, "64-bit boot protocol".

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;

use forkd_kvm::{KvmError, Vcpu, mode};
use forkd_memory::GuestRam;
use forkd_memory::layout::Layout;
use kvm_bindings::kvm_regs;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{Bytes, GuestAddress};

use crate::layout;

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;
const BOOT_FLAG: u16 = 0xaa55;
const HEADER_MAGIC: u32 = 0x5372_6448;
/// "Other" boot loader: no type is assigned.
const LOADER_TYPE: u8 = 0xff;
const KERNEL_ALIGNMENT: u32 = 0x0100_0000;
/// Offset of the 64-bit entry point in a bzImage's protected-mode part.
const ENTRY_64: u64 = 0x200;
/// The kernel's part of RAM must leave the ramdisk at least this much below its end.
const RAMDISK_ALIGN: u64 = 4096;

/// A kernel that cannot be booted.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Neither a bzImage nor an ELF kernel.
    #[error("the kernel is neither a bzImage nor an ELF file that fits the machine's memory")]
    Kernel(#[source] linux_loader::loader::Error),
    /// The ramdisk does not fit below the end of low RAM.
    #[error("the ramdisk of {0} bytes does not fit the machine's memory; give it more")]
    RamdiskTooLarge(u64),
    /// A file could not be read.
    #[error("the {0} could not be read")]
    Read(&'static str, #[source] std::io::Error),
    /// The command line is too long or not ASCII.
    #[error(
        "the kernel command line is longer than {} bytes or holds other than printable ASCII",
        layout::CMDLINE_MAX
    )]
    Cmdline,
    /// A structure could not be written to guest RAM.
    #[error("the machine's memory is too small to boot")]
    Ram(#[from] vm_memory::GuestMemoryError),
    /// The boot parameters could not be written.
    #[error("the boot parameters could not be written")]
    Params(#[source] linux_loader::configurator::Error),
    /// The first vCPU could not be prepared.
    #[error(transparent)]
    Kvm(#[from] KvmError),
}

/// Loads kernel, ramdisk and parameters into RAM; the answer is where the first vCPU starts.
///
/// # Errors
/// Whatever does not fit or cannot be read.
pub fn load(
    ram: &GuestRam,
    ram_layout: &Layout,
    kernel: &mut File,
    ramdisk: &mut File,
    cmdline: &str,
) -> Result<u64, BootError> {
    let (loaded, entry) = load_kernel(ram, kernel)?;
    let mut header = loaded.setup_header.unwrap_or_else(plain_header);
    load_cmdline(ram, cmdline)?;
    let (at, len) = load_ramdisk(ram, ram_layout, ramdisk, loaded.kernel_end)?;
    header.type_of_loader = LOADER_TYPE;
    header.cmd_line_ptr = low(layout::CMDLINE);
    header.cmdline_size = u32::try_from(cmdline.len() + 1).map_err(|_| BootError::Cmdline)?;
    header.ramdisk_image = low(at);
    header.ramdisk_size = low(len);
    let mut params = boot_params { hdr: header, ..Default::default() };
    params.acpi_rsdp_addr = layout::ACPI;
    memory_map(ram_layout, &mut params);
    LinuxBootConfigurator::write_bootparams(&BootParams::new(&params, GuestAddress(layout::ZERO_PAGE)), ram)
        .map_err(BootError::Params)?;
    mode::write_tables(ram, layout::TABLES, layout::BOOT_MAPPED_GIB)?;
    Ok(entry)
}

/// Puts the first vCPU at the kernel's 64-bit entry point.
///
/// # Errors
/// KVM's refusal.
pub fn prepare_first_vcpu(vcpu: &Vcpu, entry: u64) -> Result<(), KvmError> {
    let mut sregs = vcpu.sregs()?;
    mode::long_mode(&mut sregs, layout::TABLES.paging, layout::TABLES.gdt);
    vcpu.set_sregs(&sregs)?;
    vcpu.set_regs(&kvm_regs {
        rip: entry,
        rsi: layout::ZERO_PAGE,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rflags: 2,
        ..Default::default()
    })
}

fn load_kernel(ram: &GuestRam, kernel: &mut File) -> Result<(KernelLoaderResult, u64), BootError> {
    let high = Some(GuestAddress(layout::HIGH_RAM));
    let mut magic = [0u8; 4];
    kernel.read_exact_at(&mut magic, 0).map_err(|e| BootError::Read("kernel", e))?;
    kernel.seek(SeekFrom::Start(0)).map_err(|e| BootError::Read("kernel", e))?;
    if magic == *b"\x7fELF" {
        let loaded = Elf::load(ram, None, kernel, high).map_err(BootError::Kernel)?;
        let entry = loaded.kernel_load.0;
        return Ok((loaded, entry));
    }
    let loaded = BzImage::load(ram, None, kernel, high).map_err(BootError::Kernel)?;
    let entry = loaded.kernel_load.0 + ENTRY_64;
    Ok((loaded, entry))
}

/// An ELF kernel brings no setup header: this is what one would say.
fn plain_header() -> setup_header {
    setup_header {
        boot_flag: BOOT_FLAG,
        header: HEADER_MAGIC,
        kernel_alignment: KERNEL_ALIGNMENT,
        ..Default::default()
    }
}

fn load_cmdline(ram: &GuestRam, cmdline: &str) -> Result<(), BootError> {
    let printable = cmdline.bytes().all(|b| (0x20..0x7f).contains(&b));
    if cmdline.len() + 1 > layout::CMDLINE_MAX || !printable {
        return Err(BootError::Cmdline);
    }
    ram.write_slice(cmdline.as_bytes(), GuestAddress(layout::CMDLINE))?;
    ram.write_obj(0u8, GuestAddress(layout::CMDLINE + cmdline.len() as u64))?;
    Ok(())
}

/// Places the ramdisk at the end of low RAM, out of the way of the kernel that unpacks itself upwards.
fn load_ramdisk(
    ram: &GuestRam,
    ram_layout: &Layout,
    ramdisk: &mut File,
    kernel_end: u64,
) -> Result<(u64, u64), BootError> {
    let len = ramdisk.metadata().map_err(|e| BootError::Read("ramdisk", e))?.len();
    let low_end = ram_layout.ranges().first().map_or(0, |r| r.end());
    let at = low_end.checked_sub(len).map(|at| at - at % RAMDISK_ALIGN);
    let at = at.filter(|at| *at > kernel_end.max(layout::HIGH_RAM)).ok_or(BootError::RamdiskTooLarge(len))?;
    let size = usize::try_from(len).map_err(|_| BootError::RamdiskTooLarge(len))?;
    ramdisk.seek(SeekFrom::Start(0)).map_err(|e| BootError::Read("ramdisk", e))?;
    ram.read_exact_volatile_from(GuestAddress(at), ramdisk, size)?;
    Ok((at, len))
}

fn memory_map(ram_layout: &Layout, params: &mut boot_params) {
    let mut map = vec![
        (0, layout::LOW_RAM_END, E820_RAM),
        (layout::LOW_RAM_END, layout::HIGH_RAM - layout::LOW_RAM_END, E820_RESERVED),
    ];
    for range in ram_layout.ranges() {
        let start = range.start.max(layout::HIGH_RAM);
        if start < range.end() {
            map.push((start, range.end() - start, E820_RAM));
        }
    }
    for (slot, (addr, size, kind)) in params.e820_table.iter_mut().zip(&map) {
        *slot = boot_e820_entry { addr: *addr, size: *size, r#type: *kind };
    }
    params.e820_entries = u8::try_from(map.len()).unwrap_or(u8::MAX);
}

/// Addresses below 4 GiB, as the boot protocol's 32-bit fields take them.
fn low(address: u64) -> u32 {
    u32::try_from(address).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use forkd_memory::map;

    use super::*;

    #[test]
    fn what_is_no_kernel_or_too_long_is_refused() {
        let ram_layout = Layout::new(16 << 20);
        let ram = map::anonymous(&ram_layout).unwrap();
        let mut junk = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut junk, &[0x90; 8192]).unwrap();
        let mut empty = tempfile::tempfile().unwrap();
        assert!(matches!(load(&ram, &ram_layout, &mut junk, &mut empty, ""), Err(BootError::Kernel(_))));
        assert!(matches!(load_cmdline(&ram, &"x".repeat(5000)), Err(BootError::Cmdline)));
        assert!(matches!(load_cmdline(&ram, "a\nb"), Err(BootError::Cmdline)));
        junk.set_len(64 << 20).unwrap();
        assert!(matches!(
            load_ramdisk(&ram, &ram_layout, &mut junk, 2 << 20),
            Err(BootError::RamdiskTooLarge(_))
        ));
    }

    #[test]
    fn the_memory_map_leaves_the_hole_out() {
        let mut params = boot_params::default();
        memory_map(&Layout::new(6 << 30), &mut params);
        let last = params.e820_table[3];
        assert_eq!((params.e820_entries, last.addr, last.size), (4, 1 << 32, 3 << 30));
    }
}
