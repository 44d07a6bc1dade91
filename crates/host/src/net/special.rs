//! Addresses that no sandbox reaches unless a policy names them, in every form that they can be written in.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::addresses::{OUTER4, OUTER6};

const fn v4(a: u8, b: u8, c: u8, d: u8, len: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), len)
}

const fn v6(a: u16, b: u16, c: u16, len: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, 0, 0, 0, 0, 0), len)
}

/// Never reached, whatever a policy names: what is on this host, what is no place, and many places at once.
const NEVER4: [Ipv4Net; 5] = [
    v4(0, 0, 0, 0, 8),
    v4(127, 0, 0, 0, 8),
    OUTER4, // Other sandboxes.
    v4(224, 0, 0, 0, 4),
    v4(240, 0, 0, 0, 4),
];

/// Reached only where a policy names them.
const NAMED4: [Ipv4Net; 8] = [
    v4(10, 0, 0, 0, 8),
    v4(100, 64, 0, 0, 10),
    v4(168, 63, 129, 16, 32), // Azure's metadata and name service, which looks public.
    v4(169, 254, 0, 0, 16),   // Link-local, with the metadata service of most clouds.
    v4(172, 16, 0, 0, 12),
    v4(192, 0, 0, 0, 24), // With the guest's own network, and Oracle's metadata service.
    v4(192, 88, 99, 0, 24),
    v4(192, 168, 0, 0, 16),
];

/// As [`NEVER4`].
const NEVER6: [Ipv6Net; 7] = [
    v6(0, 0, 0, 96), // Unspecified, loopback, and IPv4 in its oldest disguise.
    Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96), // IPv4-mapped.
    v6(0x100, 0, 0, 64),
    v6(0x2001, 0, 0, 32), // Teredo carries IPv4 addresses turned over.
    OUTER6,               // Other sandboxes.
    v6(0xfec0, 0, 0, 10),
    v6(0xff00, 0, 0, 8),
];

/// As [`NAMED4`]. Unique local addresses include the metadata services of AWS (`fd00:ec2::/32`) and Google.
const NAMED6: [Ipv6Net; 3] = [v6(0x64, 0xff9b, 1, 48), v6(0xfc00, 0, 0, 7), v6(0xfe80, 0, 0, 10)];

/// Everything special in IPv4.
pub(super) fn special4() -> Vec<Ipv4Net> {
    Ipv4Net::aggregate(&[&NEVER4[..], &NAMED4].concat())
}

/// Everything special in IPv6, with special IPv4 addresses behind translators (NAT64) and in tunnels (6to4).
pub(super) fn special6() -> Vec<Ipv6Net> {
    let carried = special4().into_iter().flat_map(|net| [nat64(net), six_to_four(net)]);
    Ipv6Net::aggregate(&NEVER6.into_iter().chain(NAMED6).chain(carried).collect())
}

/// Whether all of this network is special, so that naming it means just that.
pub(super) fn lies_in_special(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => special4().iter().any(|special| special.contains(&net)),
        IpNet::V6(net) => special6().iter().any(|special| special.contains(&net)),
    }
}

/// Whether no policy can open any of this network.
pub(super) fn is_never(net: IpNet) -> bool {
    match net {
        IpNet::V4(net) => NEVER4.iter().any(|never| never.contains(&net)),
        IpNet::V6(net) => {
            let carried =
                |never: &Ipv4Net| nat64(*never).contains(&net) || six_to_four(*never).contains(&net);
            NEVER6.iter().any(|never| never.contains(&net)) || NEVER4.iter().any(carried)
        }
    }
}

/// RFC 6052: 64:ff9b::/96, then the IPv4 address.
fn nat64(net: Ipv4Net) -> Ipv6Net {
    let prefix = u128::from(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0));
    let address = prefix | u128::from(u32::from(net.network()));
    Ipv6Net::new_assert(address.into(), 96 + net.prefix_len())
}

/// RFC 3056: 2002::/16, then the IPv4 address.
fn six_to_four(net: Ipv4Net) -> Ipv6Net {
    let prefix = u128::from(Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0));
    let address = prefix | u128::from(u32::from(net.network())) << 80;
    Ipv6Net::new_assert(address.into(), 16 + net.prefix_len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_special(address: &str) -> bool {
        lies_in_special(address.parse::<std::net::IpAddr>().unwrap().into())
    }

    #[test]
    fn each_form_of_what_must_not_be_reached() {
        for address in [
            "0.0.0.0",
            "10.0.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "169.254.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::169.254.169.254",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "64:ff9b::169.254.169.254",
            "64:ff9b::a00:1",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "2002:a00:1::",
            "2002:c0a8:101::1",
            "2001:0:1::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fc00::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "fd66:6f72:6b65::1",
        ] {
            assert!(is_special(address), "{address}");
        }
        for address in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "168.63.129.15",
            "169.253.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.2.1",
            "192.169.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2001:db8::1",
            "2606:4700::1111",
            "64:ff9b::101:101",
            "2002:101:101::1",
            "2a00::1",
        ] {
            assert!(!is_special(address), "{address}");
        }
    }

    #[test]
    fn only_what_has_no_use_can_never_be_named() {
        for net in ["127.0.0.0/8", "198.18.5.0/24", "::1/128", "64:ff9b::7f00:1/128", "2002:7f00:1::/48"] {
            assert!(is_never(net.parse().unwrap()), "{net}");
        }
        for net in ["10.0.0.0/8", "169.254.169.254/32", "fd00:ec2::254/128", "0.0.0.0/0", "::/0"] {
            assert!(!is_never(net.parse().unwrap()), "{net}");
        }
    }
}
