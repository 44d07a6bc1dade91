//! Which addresses and names a slot has. All of it follows from its number.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

/// The tap, in every namespace.
pub(super) const TAP: &str = "tap0";
/// The namespace's end of the veth, in every namespace.
pub(super) const OUT: &str = "out";
/// How the host's ends of veths begin; their number follows.
pub const VETH_PREFIX: &str = "fkd-";
/// The guest's hardware address.
pub(super) const GUEST_MAC: [u8; 6] = [0x02, 0x66, 0x6b, 0x64, 0x00, 0x01];
/// The gateway's, which is the tap's.
pub(super) const GATEWAY_MAC: [u8; 6] = [0x02, 0x66, 0x6b, 0x64, 0x00, 0x02];

/// Addresses between namespaces and the host. RFC 2544 gives these to test networks: no provider routes them, and hardly
/// a network uses them.
pub(super) const OUTER4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(198, 18, 0, 0), 15);
/// The same in IPv6.
pub(super) const OUTER6: Ipv6Net =
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd66, 0x6f72, 0x6b65, 0, 0, 0, 0, 0), 64);

/// How many slots a host can have: each takes two addresses.
pub const MOST_SLOTS: u32 = 1 << 16;

/// The ends of one veth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outer {
    /// The host's end.
    pub(super) host4: Ipv4Addr,
    /// The namespace's end: what the host sees the guest as.
    pub(super) inner4: Ipv4Addr,
    /// The host's end.
    pub(super) host6: Ipv6Addr,
    /// The namespace's end.
    pub(super) inner6: Ipv6Addr,
    /// Hardware address of the host's end.
    pub(super) host_mac: [u8; 6],
    /// Hardware address of the namespace's end.
    pub(super) inner_mac: [u8; 6],
}

impl Outer {
    /// Those of slot number `index`, below [`MOST_SLOTS`].
    pub(super) fn of(index: u32) -> Self {
        let v4 = |end: u32| Ipv4Addr::from(u32::from(OUTER4.addr()) | (index % MOST_SLOTS) << 1 | end);
        let v6 = |end: u128| Ipv6Addr::from(u128::from(OUTER6.addr()) | u128::from(index) << 1 | end);
        let [_, high, middle, low] = index.to_be_bytes();
        let mac = |end: u8| [0x02, 0x66, 0x10 | end, high, middle, low];
        Self { host4: v4(0), inner4: v4(1), host6: v6(0), inner6: v6(1), host_mac: mac(0), inner_mac: mac(1) }
    }
}

/// The host's end of a slot's veth.
pub(super) fn veth(index: u32) -> String {
    format!("{VETH_PREFIX}{index}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_slots_share_an_address() {
        assert_eq!(Outer::of(0).inner4, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(Outer::of(300).host4, Ipv4Addr::new(198, 18, 2, 88));
        assert_eq!(Outer::of(MOST_SLOTS - 1).inner4, Ipv4Addr::new(198, 19, 255, 255));
        assert_eq!(Outer::of(1).inner6, "fd66:6f72:6b65::3".parse::<Ipv6Addr>().unwrap());
        let all: std::collections::HashSet<_> = (0..MOST_SLOTS).map(|n| Outer::of(n).inner_mac).collect();
        assert_eq!(all.len(), MOST_SLOTS as usize);
        assert!(veth(MOST_SLOTS - 1).len() < 16, "names of interfaces are 15 bytes at most");
    }
}
