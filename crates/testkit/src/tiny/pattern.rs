//! A guest that marks every page of its ranges, a third of them at a time.

use super::PRINT_READY;

/// The page directories for what lies above 4 GiB; the boot tables end there.
const DIRECTORIES: u32 = 0x1_0000;
/// Entry for 4 GiB in the table that the boot tables start with.
const FIFTH_GIB: u32 = 0xa000 + 4 * 8;
const FOUR_GIB: u64 = 4 << 30;
const PAGE: u64 = 4096;

/// First address and pages.
pub type Range = (u64, u64);

/// Prints `R`; then for each digit that is typed at the console marks the pages whose number within their range leaves
/// the digit's remainder by three, and prints the digit. [`mark`] says what such a page holds at both of its ends.
pub fn code(ranges: &[Range]) -> Vec<u8> {
    let mut code = Vec::new();
    let end = ranges.iter().map(|(start, pages)| start + pages * PAGE).max().unwrap_or(0);
    map_high_memory(&mut code, end);
    code.extend(PRINT_READY);
    let again = code.len();
    // mov dx,0x3fd; wait: in al,dx; test al,1; jz wait; mov dx,0x3f8; in al,dx; xor ecx,ecx; mov cl,al
    code.extend([0x66, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0x66, 0xba, 0xf8, 0x03, 0xec]);
    code.extend([0x31, 0xc9, 0x88, 0xc1]);
    // mov eax,ecx; sub eax,'0'; while eax >= 3: sub eax,3; shl eax,12; mov ebx,eax
    code.extend([0x89, 0xc8, 0x83, 0xe8, 0x30, 0x83, 0xf8, 0x03, 0x72, 0x05, 0x83, 0xe8, 0x03, 0xeb, 0xf6]);
    code.extend([0xc1, 0xe0, 0x0c, 0x89, 0xc3]);
    for (start, pages) in ranges {
        // mov rdi,start; add rdi,rbx; mov rsi,end
        code.extend([0x48, 0xbf]);
        code.extend(start.to_le_bytes());
        code.extend([0x48, 0x01, 0xdf, 0x48, 0xbe]);
        code.extend((start + pages * PAGE).to_le_bytes());
        // next: mov rax,rdi; add rax,rcx; mov [rdi],rax; mov [rdi+0xff8],rax; add rdi,0x3000; cmp rdi,rsi; jb next
        code.extend([
            0x48, 0x89, 0xf8, 0x48, 0x01, 0xc8, 0x48, 0x89, 0x07, 0x48, 0x89, 0x87, 0xf8, 0x0f, 0, 0,
        ]);
        code.extend([0x48, 0x81, 0xc7, 0, 0x30, 0, 0, 0x48, 0x39, 0xf7, 0x72, 0xe4]);
    }
    // mov eax,ecx; mov dx,0x3f8; out dx,al; jmp again
    code.extend([0x89, 0xc8, 0x66, 0xba, 0xf8, 0x03, 0xee, 0xe9]);
    let back = (again as i64 - (code.len() as i64 + 4)) as i32;
    code.extend(back.to_le_bytes());
    code
}

/// What the page at `address` holds after `digit` marked it.
pub fn mark(address: u64, digit: u8) -> u64 {
    address + u64::from(digit)
}

/// Whether `digit` marks the page of this number within its range.
pub fn marks(digit: u8, page: u64) -> bool {
    page % 3 == u64::from(digit - b'0') % 3
}

fn map_high_memory(code: &mut Vec<u8>, end: u64) {
    let gibs = (end.max(FOUR_GIB) - FOUR_GIB).div_ceil(1 << 30);
    if gibs == 0 {
        return;
    }
    // mov edi,DIRECTORIES; mov rax,4 GiB + (present, writable, large); mov ecx,entries
    code.push(0xbf);
    code.extend(DIRECTORIES.to_le_bytes());
    code.extend([0x48, 0xb8]);
    code.extend((FOUR_GIB | 0x83).to_le_bytes());
    code.push(0xb9);
    code.extend(((gibs * 512) as u32).to_le_bytes());
    // next: mov [rdi],rax; add rdi,8; add rax,2 MiB; dec ecx; jnz next
    code.extend([
        0x48, 0x89, 0x07, 0x48, 0x83, 0xc7, 0x08, 0x48, 0x05, 0, 0, 0x20, 0, 0xff, 0xc9, 0x75, 0xef,
    ]);
    for gib in 0..gibs as u32 {
        // mov edi,entry; mov eax,directory + (present, writable); mov [rdi],rax
        code.push(0xbf);
        code.extend((FIFTH_GIB + gib * 8).to_le_bytes());
        code.push(0xb8);
        code.extend((DIRECTORIES + gib * 4096 + 3).to_le_bytes());
        code.extend([0x48, 0x89, 0x07]);
    }
}
