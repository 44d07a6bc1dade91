//! What can go wrong in a monitor, and how it is told to the engine.

use forkd_devices::bus::BusError;
use forkd_devices::virtio::DeviceRestoreError;
use forkd_kvm::{End, KvmError, StateError};
use forkd_memory::extents::ExtentsError;
use forkd_memory::map::MapError;
use forkd_protocol::control::{Refusal, RefusalClass};
use forkd_protocol::error::chain;

use crate::acpi::AcpiError;
use crate::boot::BootError;
use crate::handed::HandedError;
use crate::jail::JailError;
use crate::statefile::StateFileError;
use crate::vcpus::VcpuError;

/// A request that was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum MonitorError {
    /// It needs a machine and there is none.
    #[error("there is no machine yet: boot or restore one first")]
    NoMachine,
    /// It makes a machine and there is one.
    #[error("this monitor has its machine already")]
    HasMachine,
    /// The guest has ended, so that there is nothing to be written out.
    #[error("the guest has ended: {0:?}")]
    GuestEnded(End),
    /// vCPUs or memory outside the bounds.
    #[error("{what} must be {low} to {high}, not {given}")]
    Bounds {
        /// What was out of bounds.
        what: &'static str,
        /// Least.
        low: u32,
        /// Most.
        high: u32,
        /// What was asked.
        given: u32,
    },
    /// More devices than the machine has places for.
    #[error("the machine has no place for that many devices")]
    TooManyDevices,
    /// The saved devices and the handed-in files are not the same in number.
    #[error("the snapshot has other disks or networks than were handed in")]
    DeviceCount,
    /// Descriptors that do not fit the request.
    #[error(transparent)]
    Handed(#[from] HandedError),
    /// The kernel could not be loaded.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The ACPI tables could not be made.
    #[error(transparent)]
    Acpi(#[from] AcpiError),
    /// The state file was refused.
    #[error(transparent)]
    StateFile(#[from] StateFileError),
    /// The state does not fit this host.
    #[error(transparent)]
    State(#[from] StateError),
    /// A device's state or files were refused.
    #[error("a device could not be restored")]
    Device(#[from] DeviceRestoreError),
    /// A disk's files do not fit together.
    #[error("a disk could not be put together")]
    Disk(#[from] forkd_devices::block::DiskError),
    /// Two devices at one address: a bug in the layout.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// RAM could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// An extent table was refused.
    #[error(transparent)]
    Extents(#[from] ExtentsError),
    /// KVM refused.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// vCPUs do not do what they are told.
    #[error(transparent)]
    Vcpus(#[from] VcpuError),
    /// The file for reading a frozen top is another one.
    #[error("the file that a frozen disk top is to be read through is not that top")]
    OtherTop,
    /// The workload is not guarded any more: it was thawed, or never said to be frozen.
    #[error("the workload was frozen for too long and was thawed; try again")]
    Unguarded,
    /// The guard is having the workload thawed.
    #[error("the workload is being thawed after it was left frozen; try again")]
    Thawing,
    /// What it changed is asked of a machine that was booted, not restored.
    #[error("this machine booted, so it lies on no layer that it could differ from; write it flat")]
    NothingBelow,
    /// The writer could not be made.
    #[error("the monitor could not be copied to write the snapshot")]
    Fork(#[source] std::io::Error),
    /// What a writer may do could not be put into rules.
    #[error("the rules for a writer cannot be used")]
    Filter(#[from] seccompiler::BackendError),
    /// The monitor could not give its rights up.
    #[error(transparent)]
    Jail(#[from] JailError),
    /// A filter could not be laid over a thread.
    #[error("the monitor could not bind itself by a filter")]
    Bind(#[source] std::io::Error),
    /// Writing a layer failed.
    #[error("the snapshot could not be written")]
    Write(#[source] std::io::Error),
    /// Guest RAM could not be written to.
    #[error("the machine's RAM could not be written to")]
    Ram(#[from] vm_memory::GuestMemoryError),
    /// Reading /proc failed.
    #[error("the monitor's own page map could not be read")]
    Pagemap(#[source] std::io::Error),
    /// The cgroup that it was to live in did not let it in.
    #[error("its cgroup could not be entered")]
    Cgroup(#[source] std::io::Error),
    /// Descriptors or events of the loop failed.
    #[error("the event loop could not be set up or waited on")]
    Events(#[source] std::io::Error),
}

/// The refusal that tells the engine of `error`: its class, and the whole chain of causes as one sentence.
pub fn refusal(error: &MonitorError) -> Refusal {
    Refusal { class: class(error), message: chain(error) }
}

fn class(error: &MonitorError) -> RefusalClass {
    match error {
        MonitorError::NoMachine
        | MonitorError::HasMachine
        | MonitorError::GuestEnded(_)
        | MonitorError::NothingBelow
        | MonitorError::OtherTop
        | MonitorError::Unguarded
        | MonitorError::Thawing
        | MonitorError::Bounds { .. }
        | MonitorError::TooManyDevices
        | MonitorError::DeviceCount
        | MonitorError::Handed(_)
        | MonitorError::Boot(_)
        | MonitorError::Acpi(_)
        | MonitorError::Ram(_) => RefusalClass::Caller,
        MonitorError::State(_) | MonitorError::Kvm(_) => RefusalClass::HostUnfit,
        MonitorError::StateFile(_)
        | MonitorError::Device(_)
        | MonitorError::Disk(_)
        | MonitorError::Extents(_)
        | MonitorError::Map(MapError::LayerTooShort { .. } | MapError::ExtentOutside { .. }) => {
            RefusalClass::Corrupt
        }
        MonitorError::Map(_)
        | MonitorError::Write(_)
        | MonitorError::Fork(_)
        | MonitorError::Vcpus(VcpuError::Spawn(_)) => RefusalClass::Exhausted,
        MonitorError::Bus(_)
        | MonitorError::Vcpus(_)
        | MonitorError::Pagemap(_)
        | MonitorError::Filter(_)
        | MonitorError::Jail(_)
        | MonitorError::Bind(_)
        | MonitorError::Cgroup(_)
        | MonitorError::Events(_) => RefusalClass::Internal,
    }
}
