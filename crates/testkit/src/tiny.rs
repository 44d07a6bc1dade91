//! Guests of a few instructions, wrapped as ELF kernels.
//!
//! They start in 64-bit mode with the low 4 GiB mapped one to one, write to the serial port at 0x3f8, and use
//! only instructions that every KVM carries out, also one that interprets its guests.

pub mod pattern;
pub mod processors;
pub mod scatter;

/// mov dx,0x3f8; mov al,'R'; out dx,al
const PRINT_READY: [u8; 7] = [0x66, 0xba, 0xf8, 0x03, 0xb0, 0x52, 0xee];

/// Where the code is loaded.
pub const LOAD: u64 = 0x10_0000;

/// Prints `A` and halts.
pub const HELLO: &[u8] = &[0x66, 0xba, 0xf8, 0x03, 0xb0, 0x41, 0xee, 0xf4, 0xeb, 0xfd];

/// Pulls the reset line of the keyboard controller.
pub const RESET: &[u8] = &[0xb0, 0xfe, 0xe6, 0x64, 0xf4, 0xeb, 0xfd];

/// Executes an undefined instruction without a handler: a triple fault.
pub const FAULT: &[u8] = &[0x0f, 0x0b];

/// Prints the four bytes of the first virtio device's magic register.
pub const MMIO: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, 0xbb, 0x00, 0x00, 0x00, 0xd0, 0x8b, 0x03, 0xee, 0xc1, 0xe8, 0x08, 0xee, 0xc1,
    0xe8, 0x08, 0xee, 0xc1, 0xe8, 0x08, 0xee, 0xf4, 0xeb, 0xfd,
];

/// Writes `0` to [`ECHO_CELL`] and prints `R`; then for each byte typed at the console prints it and the cell's
/// old value, and keeps it in the cell.
pub const ECHO: &[u8] = &[
    0xbb, 0x00, 0x00, 0x30, 0x00, 0xc6, 0x03, 0x30, 0x66, 0xba, 0xf8, 0x03, 0xb0, 0x52, 0xee, 0x66, 0xba,
    0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0x66, 0xba, 0xf8, 0x03, 0xec, 0x8a, 0x0b, 0x88, 0x03, 0xee,
    0x88, 0xc8, 0xee, 0xeb, 0xe8,
];

/// Address of the byte that [`ECHO`] keeps.
pub const ECHO_CELL: u64 = 0x30_0000;

/// Prints `R` and counts up the 64-bit number at [`COUNTER`] for ever.
pub const COUNT: &[u8] =
    &[0x66, 0xba, 0xf8, 0x03, 0xb0, 0x52, 0xee, 0xbb, 0x00, 0x00, 0x40, 0x00, 0x48, 0xff, 0x03, 0xeb, 0xfb];

/// Address of the number that [`COUNT`] counts.
pub const COUNTER: u64 = 0x40_0000;

/// Prints `R` and then, for ever, writes the next number into the first 8 bytes of each of [`WAVE_PAGES`] pages from
/// [`WAVE_START`] on, one after the other: at any instant some first pages hold a number and all others the one before.
pub const WAVE: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, 0xb0, 0x52, 0xee, 0xbb, 0x00, 0x00, 0x50, 0x00, 0x31, 0xc9, 0x48, 0xff, 0xc1,
    0x89, 0xdf, 0xbe, 0x40, 0x00, 0x00, 0x00, 0x48, 0x89, 0x0f, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0xff,
    0xce, 0x75, 0xf3, 0xeb, 0xe7,
];

/// Address of the first page that [`WAVE`] writes to.
pub const WAVE_START: u64 = 0x50_0000;

/// How many pages it writes to.
pub const WAVE_PAGES: u64 = 64;

/// An ELF64 kernel of one segment: `code` at [`LOAD`], which is also its entry.
pub fn elf(code: &[u8]) -> Vec<u8> {
    const HEADER: u64 = 64;
    const PROGRAM_HEADER: u64 = 56;
    let offset = HEADER + PROGRAM_HEADER;
    let mut file = Vec::new();
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend_from_slice(&2u16.to_le_bytes()); // executable
    file.extend_from_slice(&62u16.to_le_bytes()); // x86-64
    file.extend_from_slice(&1u32.to_le_bytes());
    file.extend_from_slice(&LOAD.to_le_bytes()); // entry
    file.extend_from_slice(&HEADER.to_le_bytes()); // program headers
    file.extend_from_slice(&0u64.to_le_bytes()); // no sections
    file.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1u32.to_le_bytes()); // load
    file.extend_from_slice(&7u32.to_le_bytes()); // readable, writable, executable
    for word in [offset, LOAD, LOAD, code.len() as u64, code.len() as u64, 0x1000] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(code);
    file
}
