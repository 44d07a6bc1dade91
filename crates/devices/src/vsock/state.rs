//! The saved form of the socket device.

use serde::{Deserialize, Serialize};

use super::device::{FIRST_PORT, Vsock, VsockResources};
use super::restored::Gate;
use crate::virtio::DeviceRestoreError;

/// The socket device. Connections are not kept: the guest is told that they are gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VsockStateV1 {
    /// The guest's address.
    pub guest_cid: u64,
    /// The driver had taken the device into use, so there may be connections to be told of.
    pub active: bool,
    /// Next host port. It is kept so that late packets of old connections never meet a new one.
    pub next_port: u32,
}

pub(super) fn save(vsock: &Vsock) -> VsockStateV1 {
    VsockStateV1 { guest_cid: vsock.guest_cid, active: vsock.active, next_port: vsock.next_port }
}

pub(super) fn restore(state: VsockStateV1, resources: VsockResources) -> Result<Vsock, DeviceRestoreError> {
    let VsockStateV1 { guest_cid, active, next_port } = state;
    if next_port < FIRST_PORT {
        return Err(DeviceRestoreError::Unfit("the next host port of the socket device"));
    }
    let mut vsock = Vsock::new(guest_cid, resources)?;
    vsock.next_port = next_port;
    if active {
        vsock.active = true;
        vsock.gate = Gate::ResetDue;
        vsock.host.listen()?;
    }
    Ok(vsock)
}
