//! Giving pages of guest RAM back to the host.

use std::io;

use vm_memory::{GuestAddress, GuestMemory, Permissions};

use crate::{GuestRam, PAGE_SIZE};

/// Gives back the whole pages in a range. What was in them is lost: they read as zero in anonymous RAM, and as the
/// template in RAM of a child, where they count as unchanged. The template's file is not touched.
///
/// # Errors
/// The range lies outside RAM, or the kernel refuses (pages that are locked).
pub fn discard(ram: &GuestRam, start: u64, len: u64) -> io::Result<()> {
    let outside = || io::Error::from(io::ErrorKind::InvalidInput);
    let end = start.checked_add(len).ok_or_else(outside)? / PAGE_SIZE * PAGE_SIZE;
    let first = start.checked_next_multiple_of(PAGE_SIZE).ok_or_else(outside)?;
    let Some(len) = end.checked_sub(first).filter(|len| *len > 0) else { return Ok(()) };
    let len = usize::try_from(len).map_err(|_| outside())?;
    let pieces = ram.get_slices(GuestAddress(first), len, Permissions::Write).map_err(io::Error::other)?;
    for piece in pieces {
        let piece = piece.map_err(io::Error::other)?;
        let host = piece.ptr_guard_mut();
        // SAFETY: the guard is of this many bytes of guest RAM, a private mapping that stays mapped while `ram` lives.
        // Guest RAM is never seen as a Rust object: that its content changes is what happens to it at any time.
        let done = unsafe { libc::madvise(host.as_ptr().cast(), piece.len(), libc::MADV_DONTNEED) };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use vm_memory::Bytes;

    use super::*;
    use crate::layout::Layout;
    use crate::map;

    fn filled(ram: &GuestRam) {
        ram.write_slice(&[7; 4 * 4096], GuestAddress(0)).unwrap();
    }

    fn bytes_at(ram: &GuestRam, page: u64) -> u8 {
        ram.read_obj(GuestAddress(page * PAGE_SIZE + 9)).unwrap()
    }

    #[test]
    fn whole_pages_of_anonymous_ram_become_zero() {
        let ram = map::anonymous(&Layout::new(8 << 20)).unwrap();
        filled(&ram);
        discard(&ram, 4096 - 1, 2 * 4096 + 1).unwrap();
        assert_eq!([0, 1, 2, 3].map(|page| bytes_at(&ram, page)), [7, 0, 0, 7]);
        discard(&ram, 1, 4094).unwrap();
        assert_eq!(bytes_at(&ram, 0), 7, "no whole page lies in there");
    }

    #[test]
    fn pages_of_a_child_read_as_the_template_again_which_stays_as_it_is() {
        let template = tempfile::tempfile().unwrap();
        template.set_len(8 << 20).unwrap();
        template.write_all_at(&[3; 4096], 4096).unwrap();
        let ram = map::layered(&Layout::new(8 << 20), template.try_clone().unwrap()).unwrap();
        filled(&ram);
        discard(&ram, 0, 2 * 4096).unwrap();
        assert_eq!([0, 1, 2].map(|page| bytes_at(&ram, page)), [0, 3, 7]);
        let mut kept = [0; 2];
        template.read_exact_at(&mut kept, 4096).unwrap();
        assert_eq!(kept, [3, 3]);
    }

    #[test]
    fn what_is_no_ram_is_refused() {
        let ram = map::anonymous(&Layout::new(8 << 20)).unwrap();
        for (start, len) in [(8 << 20, 4096), (u64::MAX - 4096, 8192), (u64::MAX, 1), (0, 9 << 20)] {
            assert!(discard(&ram, start, len).is_err(), "{start:#x} {len:#x}");
        }
    }
}
