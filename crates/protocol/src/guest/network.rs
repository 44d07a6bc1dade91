//! The network as every guest sees it. It is the same in all of them: each has a network of its own, so a clone has the
//! addresses that it should have already.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The guest. RFC 7335 sets 192.0.0.0/29 aside for a host's link to its own translator, so nothing is hidden by it.
pub const GUEST4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 2);
/// The gateway, which answers names.
pub const GATEWAY4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 1);
/// Length of their network's prefix.
pub const PREFIX4: u8 = 29;
/// The guest.
pub const GUEST6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0, 0, 0, 0, 2);
/// The gateway.
pub const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x6f72, 0x6b64, 0, 0, 0, 0, 1);
/// Length of their network's prefix.
pub const PREFIX6: u8 = 64;

/// What a guest sets up on its first network device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNetwork {
    /// Own addresses, each with the length of its network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Where everything goes that is not in these networks, one of each kind of address at most.
    pub gateways: Vec<IpAddr>,
    /// Who answers names.
    pub nameservers: Vec<IpAddr>,
}

impl Default for GuestNetwork {
    /// As all guests have it.
    fn default() -> Self {
        Self {
            addresses: vec![(GUEST4.into(), PREFIX4), (GUEST6.into(), PREFIX6)],
            gateways: vec![GATEWAY4.into(), GATEWAY6.into()],
            nameservers: vec![GATEWAY4.into()],
        }
    }
}
