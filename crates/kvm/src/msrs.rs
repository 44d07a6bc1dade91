//! Model-specific registers: which are saved, and in which order they come back.

use kvm_bindings::{Msrs, kvm_msr_entry};
use kvm_ioctls::{Kvm, VcpuFd};

use crate::error::Asked;
use crate::{KvmError, StateError};

const TSC: u32 = 0x10;
const TSC_DEADLINE: u32 = 0x6e0;
/// Hyper-V's synthetic registers: no guest of ours is shown that interface.
const HYPERV: std::ops::RangeInclusive<u32> = 0x4000_0000..=0x4000_01ff;
/// Performance counters: guests are shown none.
const PERFORMANCE: [std::ops::RangeInclusive<u32>; 8] = [
    0xc1..=0xc8,
    0x186..=0x18d,
    0x309..=0x30c,
    0x345..=0x345,
    0x38d..=0x390,
    0x3f1..=0x3f2,
    0xc001_0000..=0xc001_0007,
    0xc001_0200..=0xc001_020b,
];

/// What is worth saving here. Asked where something is saved: a machine that is restored needs no list.
pub(crate) fn list(kvm: &Kvm) -> Result<Vec<u32>, KvmError> {
    let all = kvm.get_msr_index_list().asked("list the registers it saves")?;
    Ok(worth_saving(all.as_slice()))
}

/// The part of KVM's list that a guest can have changed, in restoring order.
fn worth_saving(list: &[u32]) -> Vec<u32> {
    let excluded =
        |index: &u32| HYPERV.contains(index) || PERFORMANCE.iter().any(|range| range.contains(index));
    let mut wanted: Vec<u32> = list.iter().copied().filter(|index| !excluded(index)).collect();
    if !wanted.contains(&TSC_DEADLINE) {
        wanted.push(TSC_DEADLINE);
    }
    wanted.sort_by_key(|index| match *index {
        TSC => 0,
        TSC_DEADLINE => 2,
        _ => 1,
    });
    wanted
}

/// `IA32_MISC_ENABLE` with fast strings; `IA32_MTRR_DEF_TYPE` with memory types on and write-back as the default.
const FIRMWARE: [(u32, u64); 2] = [(0x1a0, 1), (0x2ff, 1 << 11 | 6)];

/// What firmware sets before a kernel runs.
pub(crate) fn set_firmware_values(vcpu: &VcpuFd) -> Result<(), KvmError> {
    for (index, data) in FIRMWARE {
        let entry = kvm_msr_entry { index, data, ..Default::default() };
        let msrs = Msrs::from_entries(&[entry]).map_err(|_| KvmError::ListTooLong)?;
        // A processor without the register does without its value.
        vcpu.set_msrs(&msrs).asked("set model-specific registers")?;
    }
    Ok(())
}

/// Reads those of `list` that this vCPU has.
pub(crate) fn save(vcpu: &VcpuFd, list: &[u32]) -> Result<Vec<kvm_msr_entry>, KvmError> {
    let mut saved = Vec::with_capacity(list.len());
    let mut rest = list;
    while !rest.is_empty() {
        let wanted: Vec<_> =
            rest.iter().map(|index| kvm_msr_entry { index: *index, ..Default::default() }).collect();
        let mut msrs = Msrs::from_entries(&wanted).map_err(|_| KvmError::ListTooLong)?;
        let read = vcpu.get_msrs(&mut msrs).asked("save model-specific registers")?;
        saved.extend_from_slice(msrs.as_slice().get(..read).unwrap_or_default());
        // KVM stops at the first register that this vCPU lacks: pass over it.
        rest = rest.get(read + 1..).unwrap_or_default();
    }
    Ok(saved)
}

/// Sets them, in order. One that this host lacks is no harm where its value is zero.
pub(crate) fn restore(vcpu: &VcpuFd, saved: &[kvm_msr_entry]) -> Result<(), StateError> {
    let mut rest = saved;
    while !rest.is_empty() {
        let msrs = Msrs::from_entries(rest).map_err(|_| KvmError::ListTooLong)?;
        let set = vcpu.set_msrs(&msrs).asked("restore model-specific registers")?;
        let Some(refused) = rest.get(set) else { return Ok(()) };
        if refused.data != 0 {
            return Err(StateError::Msr { index: refused.index });
        }
        rest = rest.get(set + 1..).unwrap_or_default();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_comes_first_and_its_deadline_last() {
        assert_eq!(worth_saving(&[0x6e0, 0x174, 0x10, 0x4000_0001, 0xc1]), [0x10, 0x174, 0x6e0]);
        assert_eq!(worth_saving(&[0x174]), [0x174, 0x6e0]);
    }
}
