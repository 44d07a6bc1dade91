//! A guest all of whose processors count, each in a register and in a cell of its own.

use super::PRINT_READY;

/// Address of the first processor's cell; the others follow.
pub const CELLS: u64 = 0x1_2000;
/// Bytes from one cell to the next.
pub const CELL: u64 = 8;
/// Where the other processors start: also the vector that they are sent.
const START: u32 = 0x1_1000;
const VECTOR: u8 = (START >> 12) as u8;

/// In 16-bit mode: finds its number, then counts up ecx and writes it to its cell, for ever.
const OTHERS: [u8; 32] = [
    0xb8, 0x00, 0x12, 0x8e, 0xd8, // mov ax,CELLS / 16; mov ds,ax
    0x66, 0xb8, 0x01, 0x00, 0x00, 0x00, 0x0f, 0xa2, // mov eax,1; cpuid
    0x66, 0xc1, 0xeb, 0x18, 0x66, 0xc1, 0xe3, 0x03, // shr ebx,24; shl ebx,3
    0x66, 0x31, 0xc9, 0x66, 0x41, 0x66, 0x89, 0x0f, // xor ecx,ecx; next: inc ecx; mov [bx],ecx
    0xeb, 0xf9, 0x90, // jmp next
];

/// Starts the other processors, prints `R` and counts, too. At any instant a cell holds what is in ecx, or one less.
pub fn code() -> Vec<u8> {
    let mut code = Vec::new();
    for (n, word) in (0u32..).zip(OTHERS.chunks(8)) {
        // mov edi,address; mov rax,word; mov [rdi],rax
        code.push(0xbf);
        code.extend((START + n * 8).to_le_bytes());
        code.extend([0x48, 0xb8]);
        code.extend(word);
        code.extend([0x48, 0x89, 0x07]);
    }
    // mov edi,interrupt command; INIT to all others; start-up to all others, twice as the manual wants it
    code.extend([0xbf, 0x00, 0x03, 0xe0, 0xfe, 0xc7, 0x07, 0x00, 0x45, 0x0c, 0x00]);
    for _ in 0..2 {
        code.extend([0xc7, 0x07, VECTOR, 0x46, 0x0c, 0x00]);
    }
    code.extend(PRINT_READY);
    // mov edi,CELLS; xor ecx,ecx; next: inc ecx; mov [rdi],ecx; jmp next
    code.extend([0xbf, 0x00, 0x20, 0x01, 0x00, 0x31, 0xc9, 0xff, 0xc1, 0x89, 0x0f, 0xeb, 0xfa]);
    code
}
