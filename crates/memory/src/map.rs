//! Mapping guest RAM into the monitor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use vm_memory::mmap::MmapRegionError;
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionCollectionError,
    GuestRegionMmap, MmapRegion,
};

use crate::extents::Extent;
use crate::layout::{Layout, RamRange};
use crate::{GuestRam, PAGE_SIZE};

/// Guest RAM that could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The kernel refused the mapping; usually it is out of memory or the file is too short.
    #[error("{len} bytes of guest RAM at {start:#x} could not be mapped")]
    Range {
        /// Guest-physical start.
        start: u64,
        /// Length.
        len: u64,
        /// What the kernel said.
        #[source]
        source: MmapRegionError,
    },
    /// The layer file ends before the RAM that it should back does.
    #[error("the memory layer has {has} bytes but the machine's RAM ends at {needs}; the layer is damaged")]
    LayerTooShort {
        /// Length of the file.
        has: u64,
        /// End of RAM.
        needs: u64,
    },
    /// An extent of the upper layer does not lie in RAM.
    #[error(
        "the upper memory layer has pages {first}..{end} outside the machine's RAM; the layer is damaged"
    )]
    ExtentOutside {
        /// First page.
        first: u64,
        /// End.
        end: u64,
    },
    /// Mapping an extent of the upper layer failed.
    #[error("an extent of the upper memory layer could not be mapped")]
    Upper(#[source] io::Error),
    /// Pages could not be copied before they are written to: no memory, or a kernel before 5.14.
    #[error("pages of guest RAM could not be copied early")]
    Early(#[source] io::Error),
    /// The ranges do not form one address space.
    #[error("the RAM ranges do not fit together")]
    Regions(#[from] GuestRegionCollectionError),
    /// The layer file could not be examined.
    #[error("the memory layer could not be examined")]
    Examine(#[source] io::Error),
}

const PROT: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// RAM of a machine that boots: anonymous, zero, not yet backed by anything.
///
/// # Errors
/// The kernel's refusal.
pub fn anonymous(layout: &Layout) -> Result<GuestRam, MapError> {
    build(layout, |range| {
        MmapRegion::build(
            None,
            length(range),
            PROT,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        )
    })
}

/// RAM of a restored machine: the base layer mapped copy-on-write. Nothing is read or copied.
///
/// # Errors
/// A file that does not cover the RAM (pages past its end would fault), or the kernel's refusal.
pub fn layered(layout: &Layout, base: File) -> Result<GuestRam, MapError> {
    check_length(&base, layout.end())?;
    let base = std::sync::Arc::new(base);
    build(layout, |range| {
        MmapRegion::build(
            Some(FileOffset::from_arc(base.clone(), range.start)),
            length(range),
            PROT,
            libc::MAP_PRIVATE | libc::MAP_NORESERVE,
        )
    })
}

/// Maps the extents of the merged upper layer over the base, copy-on-write as well.
///
/// # Errors
/// Extents outside RAM or past the file's end are refused before anything is mapped.
pub fn overlay(ram: &GuestRam, upper: &File, extents: &[Extent]) -> Result<(), MapError> {
    let file_pages = upper.metadata().map_err(MapError::Examine)?.len() / PAGE_SIZE;
    let mut targets = Vec::with_capacity(extents.len());
    for extent in extents {
        if extent.end() > file_pages {
            return Err(MapError::ExtentOutside { first: extent.first_page, end: extent.end() });
        }
        let (host, len) = host_range(ram, extent)?;
        targets.push((host, extent.first_page * PAGE_SIZE, len));
    }
    for (host, start, len) in targets {
        map_fixed(host, len, upper, start).map_err(MapError::Upper)?;
    }
    Ok(())
}

/// Makes private copies of pages before anyone writes to them, so that nobody has to stop for it then.
///
/// # Errors
/// Extents outside RAM are refused before anything is copied; the kernel's refusal, where it runs out of memory or
/// is older than 5.14.
pub fn copy_early(ram: &GuestRam, extents: &[Extent]) -> Result<(), MapError> {
    extents.iter().try_for_each(|extent| host_range(ram, extent).map(drop))?;
    for extent in extents {
        let (host, len) = host_range(ram, extent)?;
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        // SAFETY: the range was just checked to lie within one live mapping of guest RAM, and populating changes
        // neither the mapping nor what is read from it.
        let done = unsafe { libc::madvise(host as *mut libc::c_void, len, libc::MADV_POPULATE_WRITE) };
        if done != 0 {
            return Err(MapError::Early(io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Where an extent lies in this process, and its length; it must lie within one region of RAM.
fn host_range(ram: &GuestRam, extent: &Extent) -> Result<(u64, u64), MapError> {
    let outside = || MapError::ExtentOutside { first: extent.first_page, end: extent.end() };
    let start = extent.first_page.checked_mul(PAGE_SIZE).ok_or_else(outside)?;
    let len = extent.pages.checked_mul(PAGE_SIZE).ok_or_else(outside)?;
    let region = ram.find_region(GuestAddress(start)).ok_or_else(outside)?;
    let offset = start - region.start_addr().0;
    if offset.checked_add(len).is_none_or(|end| end > region.len()) {
        return Err(outside());
    }
    Ok((region.as_ptr() as u64 + offset, len))
}

fn build(
    layout: &Layout,
    map: impl Fn(&RamRange) -> Result<MmapRegion<()>, MmapRegionError>,
) -> Result<GuestRam, MapError> {
    let mut regions = Vec::new();
    for range in layout.ranges() {
        let refused = |source| MapError::Range { start: range.start, len: range.len, source };
        let mapping = map(range).map_err(refused)?;
        let region = GuestRegionMmap::new(mapping, GuestAddress(range.start));
        regions.push(region.ok_or(MapError::Regions(GuestRegionCollectionError::NoMemoryRegion))?);
    }
    Ok(GuestRam::from_regions(regions)?)
}

fn length(range: &RamRange) -> usize {
    usize::try_from(range.len).unwrap_or(usize::MAX)
}

fn check_length(layer: &File, needs: u64) -> Result<(), MapError> {
    let has = layer.metadata().map_err(MapError::Examine)?.len();
    if has < needs { Err(MapError::LayerTooShort { has, needs }) } else { Ok(()) }
}

fn map_fixed(host: u64, len: u64, file: &File, offset: u64) -> io::Result<()> {
    let too_large = || io::Error::from(io::ErrorKind::InvalidInput);
    let offset = libc::off_t::try_from(offset).map_err(|_| too_large())?;
    let len = usize::try_from(len).map_err(|_| too_large())?;
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: `[host, host + len)` was checked to lie within one live mapping of guest RAM, which nobody holds
    // Rust references into, so replacing its pages invalidates nothing.
    let mapped = unsafe { libc::mmap(host as *mut libc::c_void, len, PROT, flags, file.as_raw_fd(), offset) };
    if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    fn layer(pages: &[(u64, u8)], len: u64) -> File {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        for (page, value) in pages {
            file.write_all_at(&[*value; 4096], page * PAGE_SIZE).unwrap();
        }
        file
    }

    fn at(ram: &GuestRam, page: u64) -> u8 {
        ram.read_obj(GuestAddress(page * PAGE_SIZE)).unwrap()
    }

    #[test]
    fn two_restores_of_one_layer_diverge_without_touching_the_file() {
        let layout = Layout::with_hole(1 << 20, 512 << 10);
        let far = crate::layout::HOLE_END / PAGE_SIZE;
        let file = layer(&[(1, 7), (far, 9)], layout.end());
        let a = layered(&layout, file.try_clone().unwrap()).unwrap();
        let b = layered(&layout, file.try_clone().unwrap()).unwrap();
        a.write_obj(1u8, GuestAddress(PAGE_SIZE)).unwrap();
        b.write_obj(2u8, GuestAddress(far * PAGE_SIZE)).unwrap();
        assert_eq!((at(&a, 1), at(&a, far)), (1, 9));
        assert_eq!((at(&b, 1), at(&b, far)), (7, 2));
        let fresh = layered(&layout, file).unwrap();
        assert_eq!((at(&fresh, 1), at(&fresh, far), at(&fresh, 2)), (7, 9, 0));
    }

    #[test]
    fn the_upper_layer_hides_the_base_just_where_it_has_extents() {
        let layout = Layout::with_hole(1 << 20, 512 << 10);
        let far = crate::layout::HOLE_END / PAGE_SIZE;
        let ram = layered(&layout, layer(&[(1, 7), (2, 7), (far, 7)], layout.end())).unwrap();
        let upper = layer(&[(2, 8), (far, 8)], layout.end());
        let extents = [Extent { first_page: 2, pages: 1 }, Extent { first_page: far, pages: 1 }];
        overlay(&ram, &upper, &extents).unwrap();
        assert_eq!((at(&ram, 1), at(&ram, 2), at(&ram, far)), (7, 8, 8));
    }

    #[test]
    fn early_copies_read_as_before_and_count_as_changed() {
        let layout = Layout::new(1 << 20);
        let ram = layered(&layout, layer(&[(3, 7)], layout.end())).unwrap();
        copy_early(&ram, &[Extent { first_page: 3, pages: 2 }]).unwrap();
        assert_eq!((at(&ram, 3), at(&ram, 4)), (7, 0));
        let proc_dir = File::open("/proc").unwrap();
        let pagemap = crate::changed::Pagemap::open(std::os::fd::AsFd::as_fd(&proc_dir)).unwrap();
        assert_eq!(pagemap.changed(&ram).unwrap(), [Extent { first_page: 3, pages: 2 }]);
        for (first_page, pages) in [(255, 2), (300, 1), (u64::MAX, 1), (1, u64::MAX)] {
            let outside = copy_early(&ram, &[Extent { first_page, pages }]);
            assert!(matches!(outside, Err(MapError::ExtentOutside { .. })), "{first_page}+{pages}");
        }
    }

    #[test]
    fn what_would_fault_or_lie_in_the_hole_is_refused() {
        let layout = Layout::with_hole(1 << 20, 512 << 10);
        assert!(matches!(layered(&layout, layer(&[], 4096)), Err(MapError::LayerTooShort { .. })));
        let ram = anonymous(&layout).unwrap();
        let upper = layer(&[], layout.end());
        for (first_page, pages) in [(127, 2), (200, 1), (0, 1 << 40), (u64::MAX - 1, 2)] {
            assert!(overlay(&ram, &upper, &[Extent { first_page, pages }]).is_err(), "{first_page}+{pages}");
        }
    }
}
