//! A guest that writes to pages at random without end; of any instant it can be said what each page held.

/// Address of the first page.
pub const START: u64 = 0x60_0000;
/// How many pages there are.
pub const PAGES: u64 = 4096;
const SHIFT: u32 = 52;

/// Prints `R` and then, for ever, takes the next random number and writes which one it is, counted from 1, to the
/// first 8 bytes of the page that its upper bits choose.
pub const CODE: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, 0xb0, 0x52, 0xee, // print R
    0xbb, 0x00, 0x00, 0x60, 0x00, 0x31, 0xc9, 0x31, 0xc0, // mov ebx,START; xor ecx,ecx; xor eax,eax
    0x48, 0xff, 0xc1, // next: inc rcx
    0x48, 0x8d, 0x44, 0x80, 0x01, // lea rax,[rax*5 + 1]
    0x48, 0x89, 0xc7, 0x48, 0xc1, 0xef, 0x34, // mov rdi,rax; shr rdi,SHIFT
    0x48, 0xc1, 0xe7, 0x0c, 0x48, 0x01, 0xdf, // shl rdi,12; add rdi,rbx
    0x48, 0x89, 0x0f, 0xeb, 0xe5, // mov [rdi],rcx; jmp next
];

/// What the pages hold once `n` numbers were written.
pub fn pages_after(n: u64) -> Vec<u64> {
    // From the last number back to the first of which a page is left.
    const FIFTH: u64 = 0xcccc_cccc_cccc_cccd;
    let (mut pages, mut missing) = (vec![0; PAGES as usize], PAGES);
    let (mut number, mut at) = (random(n), n);
    while at > 0 && missing > 0 {
        let page = &mut pages[(number >> SHIFT) as usize];
        if *page == 0 {
            (*page, missing) = (at, missing - 1);
        }
        (number, at) = (number.wrapping_sub(1).wrapping_mul(FIFTH), at - 1);
    }
    pages
}

/// The n-th random number: n times `x -> 5 x + 1`, beginning with 0.
fn random(mut n: u64) -> u64 {
    let (mut factor, mut addend) = (5u64, 1u64);
    let mut number = 0u64;
    while n > 0 {
        if n & 1 == 1 {
            number = number.wrapping_mul(factor).wrapping_add(addend);
        }
        addend = addend.wrapping_mul(factor).wrapping_add(addend);
        factor = factor.wrapping_mul(factor);
        n >>= 1;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_as_if_all_numbers_had_been_written_one_after_the_other() {
        let (mut pages, mut number) = (vec![0; PAGES as usize], 0u64);
        for n in 1..=100_000u64 {
            number = number.wrapping_mul(5).wrapping_add(1);
            pages[(number >> SHIFT) as usize] = n;
            if [1, 40, 5_000, 100_000].contains(&n) {
                assert_eq!(pages_after(n), pages, "{n}");
            }
        }
    }
}
