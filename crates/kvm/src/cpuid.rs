//! What processor a guest is shown, and whether this host can show it.
//!
//! A guest is shown the host's processor with its own topology, less what cannot be carried: nested
//! virtualization, performance counters, asynchronous page faults (their state would not survive a fork). The
//! levels x86-64-v2 and -v3 show just the named features of those levels, so that snapshots travel between
//! hosts. Sources: Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E; the x86-64 psABI, micro-architecture
//! levels; Documentation/virt/kvm/x86/cpuid.rst.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

use crate::{KvmError, StateError};

/// Which features a guest is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// All that the host has.
    Host,
    /// x86-64-v2.
    V2,
    /// x86-64-v3, or v2 where the host lacks it.
    V3,
}

/// Place of a vCPU in its machine: one socket, one thread per core.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Number of the vCPU, which is its APIC id.
    pub id: u8,
    /// How many there are.
    pub count: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Register {
    Eax,
    Ebx,
    Ecx,
    Edx,
}

use Register::{Eax, Ebx, Ecx, Edx};

/// A word of feature bits and what each level shows of it.
struct FeatureWord {
    function: u32,
    index: u32,
    register: Register,
    v2: u32,
    /// What v3 shows beyond v2.
    v3: u32,
    /// Bits that say what the system does with the processor, not what it can do.
    dynamic: u32,
}

const fn bits(list: &[u32]) -> u32 {
    let mut word = 0;
    let mut i = 0;
    while i < list.len() {
        word |= 1 << list[i];
        i += 1;
    }
    word
}

const OSXSAVE: u32 = 27;
const TSC_DEADLINE: u32 = 24;
const HYPERVISOR: u32 = 31;

/// All feature words; a word not listed here describes (caches, names, sizes) and is not a promise.
const FEATURES: [FeatureWord; 12] = [
    FeatureWord {
        function: 1,
        index: 0,
        register: Ecx,
        v2: bits(&[0, 1, 9, 13, 17, 19, 20, 21, 23, TSC_DEADLINE, 25, 26, 30, HYPERVISOR]),
        v3: bits(&[12, 22, 28, 29]),
        dynamic: bits(&[TSC_DEADLINE, OSXSAVE, HYPERVISOR]),
    },
    FeatureWord { function: 1, index: 0, register: Edx, v2: 0x178b_fbff, v3: 0, dynamic: 1 << 28 | 1 << 9 },
    FeatureWord {
        function: 7,
        index: 0,
        register: Ebx,
        v2: bits(&[0, 1, 7, 9, 10, 18, 19, 20, 23]),
        v3: bits(&[3, 5, 8]),
        dynamic: 0,
    },
    FeatureWord { function: 7, index: 0, register: Ecx, v2: bits(&[2]), v3: 0, dynamic: bits(&[4]) },
    FeatureWord { function: 7, index: 0, register: Edx, v2: bits(&[10, 26, 27, 31]), v3: 0, dynamic: 0 },
    FeatureWord { function: 7, index: 1, register: Eax, v2: 0, v3: 0, dynamic: 0 },
    FeatureWord { function: 0xd, index: 0, register: Eax, v2: 0b11, v3: 0b100, dynamic: 0 },
    FeatureWord { function: 0xd, index: 1, register: Eax, v2: 0b111, v3: 0, dynamic: 0 },
    FeatureWord {
        function: 0x8000_0001,
        index: 0,
        register: Ecx,
        v2: bits(&[0, 1, 4, 8, 22]),
        v3: bits(&[5]),
        dynamic: 1 << 1,
    },
    FeatureWord { function: 0x8000_0001, index: 0, register: Edx, v2: 0x2fd3_fbff, v3: 0, dynamic: 1 << 9 },
    FeatureWord {
        function: 0x8000_0008,
        index: 0,
        register: Ebx,
        v2: bits(&[12, 14, 15, 24]),
        v3: 0,
        dynamic: 0,
    },
    FeatureWord { function: 0x8000_0021, index: 0, register: Eax, v2: 0, v3: 0, dynamic: 0 },
];

/// What the v3 level needs of a host, by feature word.
const V3_NEEDS: [(u32, u32, Register, u32); 3] =
    [(1, 0, Ecx, bits(&[12, 22, 28, 29])), (7, 0, Ebx, bits(&[3, 5, 8])), (0xd, 0, Eax, 0b100)];

/// KVM's paravirtual features: asynchronous page faults in their three forms.
const ASYNC_PAGE_FAULTS: u32 = bits(&[4, 10, 14]);

/// The description that vCPU `place.id` shows to the guest.
///
/// # Errors
/// The list grew beyond what KVM takes.
pub fn describe(
    supported: &CpuId,
    level: Level,
    place: Place,
    tsc_deadline: bool,
) -> Result<CpuId, KvmError> {
    let mut entries: Vec<kvm_cpuid_entry2> = supported.as_slice().to_vec();
    entries.retain(|e| !is_topology_list(e.function));
    for entry in &mut entries {
        drop_uncarried(entry);
        if entry.function == 1 {
            // Not every kernel lists the two bits that KVM itself provides; without the second, guests do not look
            // for kvm-clock.
            entry.ecx |= u32::from(tsc_deadline) << TSC_DEADLINE | 1 << HYPERVISOR;
        }
        place_entry(entry, place);
    }
    if level != Level::Host {
        mask(&mut entries, level == Level::V3 && offers_v3(supported.as_slice()));
    }
    entries.extend(topology_list(place));
    raise_maximum(&mut entries);
    CpuId::from_entries(&entries).map_err(|_| KvmError::ListTooLong)
}

/// Whether this host can show a guest what it was shown before: the same vendor and no feature missing.
///
/// # Errors
/// Names what is missing.
pub fn check_fit(shown: &[kvm_cpuid_entry2], supported: &CpuId) -> Result<(), StateError> {
    let here = supported.as_slice();
    if vendor(shown) != vendor(here) {
        return Err(StateError::CpuUnfit("it was made on a processor of another vendor".into()));
    }
    for word in &FEATURES {
        let wanted = read(shown, word.function, word.index, word.register) & !word.dynamic;
        let missing = wanted & !read(here, word.function, word.index, word.register);
        if missing != 0 {
            return Err(StateError::CpuUnfit(format!(
                "feature bits {missing:#x} of CPUID {:#x}.{} {:?} are missing; fork it where it was made, or make it again with --cpu x86-64-v2",
                word.function, word.index, word.register
            )));
        }
    }
    Ok(())
}

fn drop_uncarried(entry: &mut kvm_cpuid_entry2) {
    match entry.function {
        1 => entry.ecx &= !(1 << 5),
        0xa | 0x8000_000a | 0x8000_0022 => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0);
        }
        0x8000_0001 => entry.ecx &= !bits(&[2, 23, 24, 28]),
        0x4000_0001 => entry.eax &= !ASYNC_PAGE_FAULTS,
        _ => {}
    }
}

fn place_entry(entry: &mut kvm_cpuid_entry2, place: Place) {
    let (id, count) = (u32::from(place.id), u32::from(place.count));
    match entry.function {
        1 => {
            entry.ebx = entry.ebx & 0x0000_ffff | count << 16 | id << 24;
            entry.edx = if count > 1 { entry.edx | 1 << 28 } else { entry.edx & !(1 << 28) };
        }
        4 | 0x8000_001d => {
            let level = entry.eax >> 5 & 7;
            let sharing = if level >= 3 { count - 1 } else { 0 };
            entry.eax = entry.eax & 0x0000_3fff | sharing << 14;
            if entry.function == 4 {
                entry.eax |= (count - 1) << 26;
            }
        }
        0x8000_0008 => entry.ecx = (count - 1) | id_bits(place.count) << 12,
        0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (id, id, 0),
        _ => {}
    }
}

fn is_topology_list(function: u32) -> bool {
    matches!(function, 0xb | 0x1f)
}

/// Leaf 0xb: one thread per core, then the cores of the socket.
fn topology_list(place: Place) -> [kvm_cpuid_entry2; 3] {
    let level = |index: u32, shift: u32, within: u32, kind: u32| kvm_cpuid_entry2 {
        function: 0xb,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax: shift,
        ebx: within,
        ecx: index | kind << 8,
        edx: u32::from(place.id),
        ..Default::default()
    };
    [level(0, 0, 1, 1), level(1, id_bits(place.count), u32::from(place.count), 2), level(2, 0, 0, 0)]
}

/// Bits that hold the ids of `count` cores.
fn id_bits(count: u8) -> u32 {
    u32::from(count.max(1)).next_power_of_two().trailing_zeros()
}

fn mask(entries: &mut Vec<kvm_cpuid_entry2>, v3: bool) {
    for word in &FEATURES {
        let allowed = if v3 { word.v2 | word.v3 } else { word.v2 };
        for entry in entries.iter_mut().filter(|e| e.function == word.function && e.index == word.index) {
            *register_mut(entry, word.register) &= allowed;
        }
    }
    // Save areas of what is masked, and frequencies and identifiers that differ from host to host.
    let last_area = if v3 { 2 } else { 1 };
    entries.retain(|e| !(e.function == 0xd && e.index > last_area));
    entries.retain(|e| !matches!(e.function, 0x12 | 0x14..=0x1a | 0x1c..=0x1e | 0x8000_001f | 0x8000_0020));
    let area_bytes = if v3 { 832 } else { 576 };
    for entry in entries.iter_mut().filter(|e| e.function == 0xd) {
        match entry.index {
            0 => (entry.ecx, entry.edx) = (area_bytes, 0),
            1 => (entry.ecx, entry.edx) = (0, 0),
            _ => {}
        }
    }
}

fn raise_maximum(entries: &mut [kvm_cpuid_entry2]) {
    if let Some(first) = entries.iter_mut().find(|e| e.function == 0) {
        first.eax = first.eax.max(0xb);
    }
}

fn offers_v3(supported: &[kvm_cpuid_entry2]) -> bool {
    V3_NEEDS.iter().all(|(function, index, register, needed)| {
        read(supported, *function, *index, *register) & needed == *needed
    })
}

fn vendor(entries: &[kvm_cpuid_entry2]) -> [u32; 3] {
    [Ebx, Edx, Ecx].map(|register| read(entries, 0, 0, register))
}

fn read(entries: &[kvm_cpuid_entry2], function: u32, index: u32, register: Register) -> u32 {
    let entry = entries.iter().find(|e| e.function == function && e.index == index);
    entry.map_or(0, |e| match register {
        Eax => e.eax,
        Ebx => e.ebx,
        Ecx => e.ecx,
        Edx => e.edx,
    })
}

fn register_mut(entry: &mut kvm_cpuid_entry2, register: Register) -> &mut u32 {
    match register {
        Eax => &mut entry.eax,
        Ebx => &mut entry.ebx,
        Ecx => &mut entry.ecx,
        Edx => &mut entry.edx,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A host with every feature bit set.
    fn rich_host() -> CpuId {
        let all = u32::MAX;
        let entry = |function, index| kvm_cpuid_entry2 {
            function,
            index,
            eax: all,
            ebx: all,
            ecx: all,
            edx: all,
            ..Default::default()
        };
        let list = [(0, 0), (1, 0), (7, 0), (7, 1), (0xd, 0), (0xd, 1), (0xd, 2), (0xd, 5), (0x4000_0001, 0)];
        let extended = [(0x8000_0001, 0), (0x8000_0008, 0), (0x8000_001e, 0), (0x8000_0021, 0)];
        let mut entries: Vec<_> = list.iter().chain(&extended).map(|(f, i)| entry(*f, *i)).collect();
        entries[0] = kvm_cpuid_entry2 { eax: 7, ebx: 1, ecx: 2, edx: 3, ..Default::default() };
        CpuId::from_entries(&entries).unwrap()
    }

    fn shown(level: Level, id: u8, count: u8) -> CpuId {
        describe(&rich_host(), level, Place { id, count }, true).unwrap()
    }

    #[test]
    fn what_is_shown_fits_the_host_it_was_made_on() {
        for level in [Level::Host, Level::V2, Level::V3] {
            check_fit(shown(level, 1, 4).as_slice(), &rich_host()).unwrap();
        }
    }

    #[test]
    fn a_lesser_host_or_another_vendor_is_refused() {
        let guest = shown(Level::V3, 0, 1);
        let mut lesser = rich_host();
        lesser.as_mut_slice()[2].ebx &= !(1 << 5);
        assert!(check_fit(guest.as_slice(), &lesser).unwrap_err().to_string().contains("0x20"));
        assert!(check_fit(shown(Level::V2, 0, 1).as_slice(), &lesser).is_ok());
        let mut other = rich_host();
        other.as_mut_slice()[0].ebx = 9;
        assert!(check_fit(guest.as_slice(), &other).unwrap_err().to_string().contains("vendor"));
    }

    #[test]
    fn levels_hide_what_they_do_not_name() {
        let avx512 = 1 << 16;
        assert_ne!(read(shown(Level::Host, 0, 1).as_slice(), 7, 0, Ebx) & avx512, 0);
        assert_eq!(read(shown(Level::V3, 0, 1).as_slice(), 7, 0, Ebx) & avx512, 0);
        assert_eq!(read(shown(Level::V2, 0, 1).as_slice(), 1, 0, Ecx) & bits(&[12, 28]), 0);
        assert_eq!(read(shown(Level::V3, 0, 1).as_slice(), 0xd, 0, Eax), 0b111);
    }

    #[test]
    fn a_host_without_avx2_gives_v2_where_v3_was_asked() {
        let mut host = rich_host();
        host.as_mut_slice()[2].ebx &= !(1 << 5);
        let guest = describe(&host, Level::V3, Place { id: 0, count: 1 }, true).unwrap();
        assert_eq!(read(guest.as_slice(), 1, 0, Ecx) & 1 << 28, 0);
    }

    #[test]
    fn topology_and_what_cannot_be_carried() {
        let guest = shown(Level::Host, 2, 4);
        let e = guest.as_slice();
        assert_eq!(read(e, 1, 0, Ebx) >> 16, 2 << 8 | 4);
        assert_eq!((read(e, 0xb, 1, Eax), read(e, 0xb, 1, Ebx), read(e, 0xb, 1, Edx)), (2, 4, 2));
        assert_eq!(read(e, 0x4000_0001, 0, Eax) & ASYNC_PAGE_FAULTS, 0);
        assert_ne!(read(e, 1, 0, Ecx) & 1 << HYPERVISOR, 0);
        assert_eq!(read(e, 1, 0, Ecx) & 1 << 5, 0);
        assert_eq!(read(e, 0, 0, Eax), 0xb);
    }
}
