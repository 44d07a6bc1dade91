//! Which guest-physical addresses are RAM.

use crate::PAGE_SIZE;

/// End of the low RAM where there is more than fits below it: the devices' addresses follow.
pub const HOLE_START: u64 = 0xC000_0000;
/// Where RAM goes on after the hole.
pub const HOLE_END: u64 = 0x1_0000_0000;

/// A contiguous range of guest-physical RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RamRange {
    /// First address; a multiple of the page size.
    pub start: u64,
    /// Length in bytes; a multiple of the page size.
    pub len: u64,
}

impl RamRange {
    /// First address after the range.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The RAM of a machine of a given size: one range, or two around the hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    ranges: Vec<RamRange>,
}

impl Layout {
    /// Lays out `bytes` of RAM (rounded down to whole pages).
    pub fn new(bytes: u64) -> Self {
        Self::with_hole(bytes, HOLE_START)
    }

    /// The same with a hole that starts lower, so that tests reach its far side with little memory.
    pub fn with_hole(bytes: u64, hole_start: u64) -> Self {
        let bytes = bytes - bytes % PAGE_SIZE;
        let low = bytes.min(hole_start);
        let mut ranges = vec![RamRange { start: 0, len: low }];
        if bytes > low {
            ranges.push(RamRange { start: HOLE_END, len: bytes - low });
        }
        Self { ranges }
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> &[RamRange] {
        &self.ranges
    }

    /// First address after all RAM: the length of a memory layer's file.
    pub fn end(&self) -> u64 {
        self.ranges.last().map_or(0, RamRange::end)
    }

    /// Whether `[start, start + len)` lies in RAM, within one range.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len) else { return false };
        self.ranges.iter().any(|r| r.start <= start && end <= r.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_machines_have_one_range_and_large_ones_two() {
        for mib in [128, 2048, 3072] {
            assert_eq!(Layout::new(mib << 20).ranges().len(), 1, "{mib} MiB");
        }
        let six = Layout::new(6 << 30);
        assert_eq!(
            six.ranges(),
            [
                RamRange { start: 0, len: HOLE_START },
                RamRange { start: HOLE_END, len: (6 << 30) - HOLE_START }
            ]
        );
        assert_eq!(six.end(), HOLE_END + (3 << 30));
    }

    #[test]
    fn nothing_in_or_across_the_hole_is_ram() {
        let layout = Layout::new(4 << 30);
        assert!(layout.contains(HOLE_START - 4096, 4096));
        assert!(!layout.contains(HOLE_START - 4096, 8192));
        assert!(!layout.contains(HOLE_START, 1));
        assert!(layout.contains(HOLE_END, 4096));
        assert!(!layout.contains(u64::MAX, 2));
    }
}
