//! The saved form of a network device.

use serde::{Deserialize, Serialize};

use super::device::{Net, NetResources};
use crate::virtio::DeviceRestoreError;

/// A network device. The gate is not kept: it is closed after every restore.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetStateV1 {
    /// The guest's hardware address. All children have their template's, each in a network of its own.
    pub mac: [u8; 6],
    /// The driver had taken the device into use.
    pub active: bool,
}

pub(super) fn save(net: &Net) -> NetStateV1 {
    NetStateV1 { mac: net.mac, active: net.active }
}

pub(super) fn restore(state: NetStateV1, resources: NetResources) -> Result<Net, DeviceRestoreError> {
    let NetStateV1 { mac, active } = state;
    let mut net = Net::with_mac(mac, resources)?;
    net.active = active;
    Ok(net)
}
