//! The ACPI tables: how an unmodified kernel finds its processors and devices.
//!
//! Hardware-reduced ACPI: no legacy power management, so neither PIT, PIC nor RTC are needed. Source: ACPI
//! specification 6.5, sections 4.1 (hardware-reduced), 5.2 (tables), 5.6.9 (generic event device).

use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use acpi_tables::{Aml, aml};
use forkd_devices::serial::SERIAL_LEN;
use forkd_devices::virtio::mmio::MMIO_LEN;
use forkd_memory::GuestRam;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use crate::layout;

const OEM: [u8; 6] = *b"FORKD ";
const OEM_TABLE: [u8; 8] = *b"FORKDVM ";
const REVISION: u32 = 1;
/// FADT boot architecture flags: no VGA, no CMOS clock.
const BOOT_ARCH: u16 = 1 << 2 | 1 << 5;
/// Value of `Notify` that says the generation id changed (VM Generation ID specification).
const GENERATION_CHANGED: u8 = 0x80;

/// Tables that could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum AcpiError {
    /// They outgrew their room.
    #[error("the ACPI tables need {0} bytes, more than there is room for")]
    TooLarge(u64),
    /// Their room is not RAM.
    #[error("the ACPI tables could not be written to guest RAM")]
    Write(#[from] GuestMemoryError),
}

/// Writes all tables for a machine with `vcpus` processors and `virtio` virtio-mmio devices.
///
/// # Errors
/// They do not fit.
pub fn write(ram: &GuestRam, vcpus: u8, virtio: u32) -> Result<(), AcpiError> {
    // The root pointer comes first, at the address where the kernel's scan begins.
    let mut place = Placer { ram, next: layout::ACPI + 64 };
    let dsdt = place.table(&dsdt(virtio))?;
    let fadt = place.table(&fadt(dsdt))?;
    let madt = place.table(&madt(vcpus))?;
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = place.table(&xsdt)?;
    ram.write_slice(&bytes(&Rsdp::new(OEM, xsdt)), GuestAddress(layout::ACPI))?;
    Ok(())
}

struct Placer<'a> {
    ram: &'a GuestRam,
    next: u64,
}

impl Placer<'_> {
    fn table(&mut self, table: &dyn Aml) -> Result<u64, AcpiError> {
        let bytes = bytes(table);
        let at = self.next;
        let end = at + bytes.len() as u64;
        if end > layout::ACPI_END {
            return Err(AcpiError::TooLarge(end - layout::ACPI));
        }
        self.ram.write_slice(&bytes, GuestAddress(at))?;
        self.next = end.next_multiple_of(64);
        Ok(at)
    }
}

fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

fn fadt(dsdt: u64) -> impl Aml {
    let mut builder = FADTBuilder::new(OEM, OEM_TABLE, REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    builder.iapc_boot_arch = BOOT_ARCH.into();
    builder.finalize()
}

fn madt(vcpus: u8) -> MADT {
    let mut madt = MADT::new(OEM, OEM_TABLE, REVISION, LocalInterruptController::Address(layout::LAPIC));
    for id in 0..vcpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(vcpus, layout::IOAPIC, 0));
    madt
}

fn dsdt(virtio: u32) -> Sdt {
    let mut body = Vec::new();
    for index in 0..virtio {
        virtio_device(index, &mut body);
    }
    serial_device(&mut body);
    generation_device(&mut body);
    event_device(&mut body);
    let scope = aml::Scope::raw(aml::Path::new("_SB_"), body);
    let mut table = Sdt::new(*b"DSDT", 36, 6, OEM, OEM_TABLE, REVISION);
    table.append_slice(&scope);
    table
}

fn virtio_device(index: u32, body: &mut Vec<u8>) {
    let base = u32::try_from(layout::virtio_base(index)).unwrap_or(u32::MAX);
    let len = u32::try_from(MMIO_LEN).unwrap_or(u32::MAX);
    aml::Device::new(
        aml::Path::new(&format!("V{index:03}")),
        vec![
            &aml::Name::new("_HID".into(), &"LNRO0005"),
            &aml::Name::new("_UID".into(), &index),
            &aml::Name::new("_CCA".into(), &aml::ONE),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![
                    &aml::Memory32Fixed::new(true, base, len),
                    &edge(layout::VIRTIO_GSI + index),
                ]),
            ),
        ],
    )
    .to_aml_bytes(body);
}

fn serial_device(body: &mut Vec<u8>) {
    let ports = u8::try_from(SERIAL_LEN).unwrap_or(u8::MAX);
    aml::Device::new(
        "COM1".into(),
        vec![
            &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new(
                "_CRS".into(),
                &aml::ResourceTemplate::new(vec![
                    &aml::IO::new(layout::SERIAL_PORT, layout::SERIAL_PORT, 1, ports),
                    &edge(layout::SERIAL_GSI),
                ]),
            ),
        ],
    )
    .to_aml_bytes(body);
}

fn generation_device(body: &mut Vec<u8>) {
    let address = u32::try_from(layout::GENERATION_PAGE).unwrap_or(u32::MAX);
    aml::Device::new(
        "VGEN".into(),
        vec![
            &aml::Name::new("_HID".into(), &"FKDVMGID"),
            &aml::Name::new("_CID".into(), &"VM_Gen_Counter"),
            &aml::Name::new("_DDN".into(), &"VM_Gen_Counter"),
            &aml::Name::new("ADDR".into(), &aml::Package::new(vec![&address, &aml::ZERO])),
        ],
    )
    .to_aml_bytes(body);
}

fn event_device(body: &mut Vec<u8>) {
    aml::Device::new(
        "GED_".into(),
        vec![
            &aml::Name::new("_HID".into(), &"ACPI0013"),
            &aml::Name::new("_UID".into(), &aml::ZERO),
            &aml::Name::new("_CRS".into(), &aml::ResourceTemplate::new(vec![&edge(layout::GENERATION_GSI)])),
            &aml::Method::new(
                "_EVT".into(),
                1,
                true,
                vec![&aml::Notify::new(&aml::Path::new("\\_SB_.VGEN"), &GENERATION_CHANGED)],
            ),
        ],
    )
    .to_aml_bytes(body);
}

fn edge(gsi: u32) -> aml::Interrupt {
    aml::Interrupt::new(true, true, false, false, gsi)
}

#[cfg(test)]
mod tests {
    use forkd_memory::layout::Layout;
    use forkd_memory::map;

    use super::*;

    #[test]
    fn the_largest_machine_fits_and_every_table_adds_up_to_zero() {
        let ram = map::anonymous(&Layout::new(2 << 20)).unwrap();
        write(&ram, 8, layout::VIRTIO_MAX).unwrap();
        let mut rsdp = [0u8; 36];
        ram.read_slice(&mut rsdp, GuestAddress(layout::ACPI)).unwrap();
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, b| sum.wrapping_add(*b));
        assert_eq!(sum(&rsdp), 0);
        let table = |at: u64| {
            let len: u32 = ram.read_obj(GuestAddress(at + 4)).unwrap();
            let mut bytes = vec![0; len as usize];
            ram.read_slice(&mut bytes, GuestAddress(at)).unwrap();
            assert_eq!(sum(&bytes), 0, "table at {at:#x}");
            bytes
        };
        let xsdt = table(u64::from_le_bytes(rsdp[24..32].try_into().unwrap()));
        let entries: Vec<_> =
            xsdt[36..].chunks(8).map(|e| table(u64::from_le_bytes(e.try_into().unwrap()))).collect();
        assert_eq!(&entries[0][..4], b"FACP");
        assert_eq!(&entries[1][..4], b"APIC");
        let dsdt = table(u64::from_le_bytes(entries[0][140..148].try_into().unwrap()));
        assert_eq!(&dsdt[..4], b"DSDT");
        for name in [&b"V006"[..], b"COM1", b"VGEN", b"GED_", b"LNRO0005"] {
            assert!(dsdt.windows(name.len()).any(|w| w == name));
        }
    }
}
