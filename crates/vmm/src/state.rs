//! Everything of a machine that a snapshot carries besides memory and disks.

use forkd_devices::balloon::BalloonStateV1;
use forkd_devices::block::BlockStateV1;
use forkd_devices::net::NetStateV1;
use forkd_devices::rng::RngStateV1;
use forkd_devices::serial::SerialStateV1;
use forkd_devices::virtio::TransportStateV1;
use forkd_devices::vsock::VsockStateV1;
use forkd_kvm::{VcpuState, VmState};
use serde::{Deserialize, Serialize};

/// A whole machine. Saving builds it without struct update and restoring takes it apart without `..`: a part that
/// is forgotten does not compile.
#[derive(Debug, Serialize, Deserialize)]
pub struct MachineState {
    /// Size of RAM.
    pub memory_mib: u32,
    /// What KVM knows of the machine.
    pub vm: VmState,
    /// What KVM knows of each vCPU.
    pub vcpus: Vec<VcpuState>,
    /// The devices.
    pub devices: DevicesState,
}

/// All devices.
#[derive(Debug, Serialize, Deserialize)]
pub struct DevicesState {
    /// Disks, in the order the guest sees them.
    pub disks: Vec<TransportStateV1<BlockStateV1>>,
    /// The channel to the agent.
    pub vsock: TransportStateV1<VsockStateV1>,
    /// Entropy.
    pub rng: TransportStateV1<RngStateV1>,
    /// Network, where the machine has one.
    pub net: Option<TransportStateV1<NetStateV1>>,
    /// Console.
    pub serial: SerialStateV1,
    /// Balloon. The last field: states of version 1 end before it (`statefile.rs`).
    pub balloon: Option<TransportStateV1<BalloonStateV1>>,
}

impl MachineState {
    /// The processor's vendor as the guest was told, 12 letters.
    pub fn vendor(&self) -> [u8; 12] {
        let shown = self.vcpus.first().and_then(|v| v.cpuid.iter().find(|e| e.function == 0));
        let words = shown.map_or([0; 3], |e| [e.ebx, e.edx, e.ecx]);
        let mut vendor = [0; 12];
        for (letters, word) in vendor.chunks_mut(4).zip(words) {
            letters.copy_from_slice(&word.to_le_bytes());
        }
        vendor
    }
}
