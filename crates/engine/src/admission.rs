//! Whether what is asked for fits: memory promised against memory there, sandboxes, disk.
//!
//! A sandbox is promised its memory limit, or where it has none the memory of its guest. Most never take it, so more may
//! be promised than there is (`overcommit`); and since nothing holds them to that, what is available now has to do for
//! what a new one takes at once.

use forkd_host::memory::HostMemory;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{HostRoom, SandboxInfo};

use crate::engine::Shared;
use crate::error::NO_SPACE;
use crate::sandbox::{Life, View};

const MIB: u64 = 1 << 20;
/// What a child takes at once: its monitor, and the pages that every child changes when it is told who it is.
const TAKEN_AT_ONCE: u64 = 4 * MIB;

/// How much a host is asked to carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Admission {
    /// How many times its memory may be promised.
    pub overcommit: f64,
    /// Memory that stays available for everything else, MiB.
    pub memory_reserve_mib: u64,
    /// Most sandboxes that are not paused.
    pub max_sandboxes: u64,
    /// Room that stays free on the store's file system, MiB.
    pub disk_reserve_mib: u64,
}

impl Default for Admission {
    fn default() -> Self {
        Self { overcommit: 20.0, memory_reserve_mib: 128, max_sandboxes: 10_000, disk_reserve_mib: 64 }
    }
}

/// Why sandboxes do not fit. Nothing of them is left.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AdmissionError {
    /// There are too many.
    #[error(
        "no room for {asked} more: {there} of at most {max} sandboxes are there (`admission.max_sandboxes`)"
    )]
    Sandboxes {
        /// How many were asked for.
        asked: u64,
        /// How many there are.
        there: u64,
        /// How many there may be.
        max: u64,
    },
    /// More memory would be promised than may be.
    #[error(
        "no memory for {asked} more of {each_mib} MiB: {promised_mib} MiB are promised, and {promisable_mib} MiB may be: \
         {total_mib} MiB times {overcommit} (`admission.overcommit`); ask for a memory limit, or for fewer"
    )]
    Promised {
        /// How many were asked for.
        asked: u64,
        /// What each is promised.
        each_mib: u64,
        /// What is promised already.
        promised_mib: u64,
        /// What may be promised.
        promisable_mib: u64,
        /// What the host has.
        total_mib: u64,
        /// How many times that may be promised.
        overcommit: f64,
    },
    /// The memory is taken.
    #[error(
        "no memory for {asked} more: {available_mib} MiB are available, {reserve_mib} MiB of them stay so \
         (`admission.memory_reserve_mib`), and each takes {each_mib} MiB at once"
    )]
    Memory {
        /// How many were asked for.
        asked: u64,
        /// What is available.
        available_mib: u64,
        /// What stays available.
        reserve_mib: u64,
        /// What each takes at once.
        each_mib: u64,
    },
    /// The disk is nearly full.
    #[error(
        "no disk for more sandboxes: {free_mib} MiB are free where the store lies, and {reserve_mib} MiB stay so \
         (`admission.disk_reserve_mib`)"
    )]
    Disk {
        /// What is free.
        free_mib: u64,
        /// What stays free.
        reserve_mib: u64,
    },
}

impl AdmissionError {
    /// Who has to act.
    pub fn class(&self) -> ErrorClass {
        ErrorClass::Exhausted
    }

    /// What happened, for the machine.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Sandboxes { .. } => "too_many_sandboxes",
            Self::Promised { .. } | Self::Memory { .. } => "no_memory",
            Self::Disk { .. } => NO_SPACE,
        }
    }
}

/// What a sandbox is promised, bytes.
pub(crate) fn promise(info: &SandboxInfo) -> u64 {
    let guest = info.guest_memory_mib.saturating_mul(MIB).saturating_add(TAKEN_AT_ONCE);
    info.limits.memory_bytes().map_or(guest, |limit| limit.min(guest))
}

/// Whether it takes memory of the host.
fn counts(view: &View) -> bool {
    !matches!(view.life, Life::Paused | Life::Ended)
}

impl Admission {
    /// Whether `asked` more fit, each of which is promised so much.
    pub(crate) fn check(&self, room: &HostRoom, asked: u64, each: u64) -> Result<(), AdmissionError> {
        if room.sandboxes.saturating_add(asked) > room.max_sandboxes {
            return Err(AdmissionError::Sandboxes { asked, there: room.sandboxes, max: room.max_sandboxes });
        }
        let promised = room.memory_promised_bytes.saturating_add(each.saturating_mul(asked));
        if promised > room.memory_promisable_bytes {
            return Err(AdmissionError::Promised {
                asked,
                each_mib: each / MIB,
                promised_mib: room.memory_promised_bytes / MIB,
                promisable_mib: room.memory_promisable_bytes / MIB,
                total_mib: room.memory_total_bytes / MIB,
                overcommit: self.overcommit,
            });
        }
        let reserve = self.memory_reserve_mib.saturating_mul(MIB);
        let at_once = TAKEN_AT_ONCE.saturating_mul(asked);
        if room.memory_available_bytes < reserve.saturating_add(at_once) {
            return Err(AdmissionError::Memory {
                asked,
                available_mib: room.memory_available_bytes / MIB,
                reserve_mib: self.memory_reserve_mib,
                each_mib: TAKEN_AT_ONCE / MIB,
            });
        }
        if room.disk_free_bytes < self.disk_reserve_mib.saturating_mul(MIB) {
            let free_mib = room.disk_free_bytes / MIB;
            return Err(AdmissionError::Disk { free_mib, reserve_mib: self.disk_reserve_mib });
        }
        Ok(())
    }

    fn promisable(&self, total: u64) -> u64 {
        // A float is exact enough for what is a guess anyway; too large a product saturates.
        (total as f64 * self.overcommit) as u64
    }
}

/// What there is room for now, all that is being started counted in.
pub(crate) fn room(shared: &Shared) -> HostRoom {
    let admission = &shared.config.admission;
    // A host that does not say what it has is not held against.
    let memory = HostMemory::now().unwrap_or(HostMemory { total: u64::MAX, available: u64::MAX });
    let promises = shared.registry.of_each(|view| counts(view).then(|| promise(&view.info)));
    HostRoom {
        memory_total_bytes: memory.total,
        memory_available_bytes: memory.available,
        memory_promised_bytes: promises.iter().fold(0, |sum, promise| sum.saturating_add(*promise)),
        memory_promisable_bytes: admission.promisable(memory.total),
        sandboxes: promises.len() as u64,
        max_sandboxes: admission.max_sandboxes,
        disk_free_bytes: shared.store.room().free_bytes().unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> HostRoom {
        HostRoom {
            memory_total_bytes: 1000 * MIB,
            memory_available_bytes: 500 * MIB,
            memory_promised_bytes: 1500 * MIB,
            memory_promisable_bytes: 2000 * MIB,
            sandboxes: 3,
            max_sandboxes: 10,
            disk_free_bytes: 100 * MIB,
        }
    }

    #[test]
    fn what_fits_is_let_in_and_what_does_not_is_told_with_the_figures() {
        let admission = Admission::default();
        admission.check(&room(), 7, 50 * MIB).unwrap();
        let many = admission.check(&room(), 8, 1).unwrap_err();
        assert_eq!(many, AdmissionError::Sandboxes { asked: 8, there: 3, max: 10 });
        let large = admission.check(&room(), 2, 251 * MIB).unwrap_err();
        assert!(large.to_string().contains("1500 MiB are promised, and 2000 MiB may be"), "{large}");
        let taken = HostRoom { memory_available_bytes: 131 * MIB, ..room() };
        let taken = admission.check(&taken, 1, MIB).unwrap_err();
        assert!(matches!(taken, AdmissionError::Memory { available_mib: 131, .. }), "{taken}");
        let full = HostRoom { disk_free_bytes: MIB, ..room() };
        let full = admission.check(&full, 1, MIB).unwrap_err();
        assert_eq!((full.code(), full.class()), (NO_SPACE, ErrorClass::Exhausted));
        assert!(admission.check(&room(), u64::MAX, u64::MAX).is_err());
    }

    #[test]
    fn more_may_be_promised_than_there_is() {
        assert_eq!(Admission { overcommit: 1.5, ..Admission::default() }.promisable(1000), 1500);
        assert_eq!(Admission::default().promisable(u64::MAX), u64::MAX);
    }
}
