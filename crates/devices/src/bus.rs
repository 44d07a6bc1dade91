//! Address ranges and the devices behind them: one bus for port I/O and one for memory-mapped I/O.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A device that answers reads and writes of a range of addresses.
pub trait BusDevice: Send {
    /// Fills `data` from `offset` bytes into the range.
    fn read(&mut self, offset: u64, data: &mut [u8]);
    /// Takes `data` at `offset` bytes into the range.
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// A range that cannot be added to a bus.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BusError {
    /// The range is empty or runs over the end of the address space; the caller's layout is wrong.
    #[error("the range at {base:#x} of {len:#x} bytes is empty or too long")]
    InvalidRange {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Another device is already there; the caller's layout is wrong.
    #[error("the range at {base:#x} of {len:#x} bytes overlaps a device that is already on the bus")]
    Overlap {
        /// First address.
        base: u64,
        /// Length in bytes.
        len: u64,
    },
}

struct Slot {
    base: u64,
    /// Last address, inclusive, so that a range may end at the top of the address space.
    last: u64,
    device: Arc<Mutex<dyn BusDevice>>,
}

/// The devices of one address space, sorted by address. Looking one up allocates nothing.
#[derive(Default)]
pub struct Bus {
    slots: Vec<Slot>,
}

impl Bus {
    /// A bus with nothing on it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts a device at `base`.
    ///
    /// # Errors
    /// Empty, overflowing and overlapping ranges are refused.
    pub fn insert(&mut self, base: u64, len: u64, device: Arc<Mutex<dyn BusDevice>>) -> Result<(), BusError> {
        let last = len
            .checked_sub(1)
            .and_then(|rest| base.checked_add(rest))
            .ok_or(BusError::InvalidRange { base, len })?;
        let at = self.slots.partition_point(|slot| slot.last < base);
        if self.slots.get(at).is_some_and(|slot| slot.base <= last) {
            return Err(BusError::Overlap { base, len });
        }
        self.slots.insert(at, Slot { base, last, device });
        Ok(())
    }

    /// Reads from the device at `addr`; where there is none (or the access runs past its end), `data`
    /// becomes all ones as on a real bus and the answer is `false`.
    pub fn read(&self, addr: u64, data: &mut [u8]) -> bool {
        match self.find(addr, data.len()) {
            Some((offset, mut device)) => {
                device.read(offset, data);
                true
            }
            None => {
                data.fill(0xff);
                false
            }
        }
    }

    /// Writes to the device at `addr`; where there is none the write is dropped and the answer is `false`.
    pub fn write(&self, addr: u64, data: &[u8]) -> bool {
        match self.find(addr, data.len()) {
            Some((offset, mut device)) => {
                device.write(offset, data);
                true
            }
            None => false,
        }
    }

    fn find(&self, addr: u64, len: usize) -> Option<(u64, MutexGuard<'_, dyn BusDevice + 'static>)> {
        let at = self.slots.partition_point(|slot| slot.last < addr);
        let slot = self.slots.get(at)?;
        let offset = addr.checked_sub(slot.base)?;
        let rest = u64::try_from(len.checked_sub(1)?).ok()?;
        let end = addr.checked_add(rest)?;
        // A panic in a device is a bug, but the other vCPUs must not hang or die of it too.
        (end <= slot.last).then(|| (offset, slot.device.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.slots.iter().map(|slot| (slot.base, slot.last))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Echo {
        seen: Vec<(u64, Vec<u8>)>,
    }

    impl BusDevice for Echo {
        fn read(&mut self, offset: u64, data: &mut [u8]) {
            data.fill(u8::try_from(offset).unwrap());
        }
        fn write(&mut self, offset: u64, data: &[u8]) {
            self.seen.push((offset, data.to_vec()));
        }
    }

    fn echo() -> Arc<Mutex<Echo>> {
        Arc::default()
    }

    #[test]
    fn accesses_reach_the_device_of_their_range_with_its_offset() {
        let (low, high) = (echo(), echo());
        let mut bus = Bus::new();
        bus.insert(0x2000, 0x10, high.clone()).unwrap();
        bus.insert(0x1000, 0x10, low.clone()).unwrap();
        let mut data = [0; 4];
        assert!(bus.read(0x1004, &mut data));
        assert_eq!(data, [4; 4]);
        assert!(bus.write(0x200c, &[1, 2, 3, 4]));
        assert_eq!(high.lock().unwrap().seen, [(0xc, vec![1, 2, 3, 4])]);
        assert!(low.lock().unwrap().seen.is_empty());
    }

    #[test]
    fn unknown_addresses_read_as_ones_and_swallow_writes() {
        let mut bus = Bus::new();
        bus.insert(0x1000, 0x10, echo()).unwrap();
        for addr in [0, 0xfff, 0x1010, u64::MAX] {
            let mut data = [0; 2];
            assert!(!bus.read(addr, &mut data), "{addr:#x}");
            assert_eq!(data, [0xff; 2]);
            assert!(!bus.write(addr, &[1]));
        }
        let mut across = [0; 4];
        assert!(!bus.read(0x100e, &mut across), "an access past the end belongs to nobody");
        assert!(!bus.read(0x1000, &mut []));
    }

    #[test]
    fn overlapping_and_impossible_ranges_are_refused() {
        let mut bus = Bus::new();
        bus.insert(0x1000, 0x10, echo()).unwrap();
        for base in [0xff1, 0x1000, 0x1008, 0x100f] {
            let refused = bus.insert(base, 0x10, echo());
            assert_eq!(refused, Err(BusError::Overlap { base, len: 0x10 }));
        }
        assert!(matches!(bus.insert(0x1000, 0, echo()), Err(BusError::InvalidRange { .. })));
        assert!(matches!(bus.insert(u64::MAX, 2, echo()), Err(BusError::InvalidRange { .. })));
        bus.insert(0xff0, 0x10, echo()).unwrap();
        bus.insert(u64::MAX, 1, echo()).unwrap();
        assert!(bus.write(u64::MAX, &[1]));
    }
}
