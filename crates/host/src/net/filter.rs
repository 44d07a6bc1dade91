//! From a policy to what the sets of a namespace hold.
//!
//! The rules of a namespace never change; what they let out is looked up in sets. `explicit` holds what a policy names
//! among special addresses and is asked before these are refused, `named` everything else it names.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use forkd_protocol::rest::{Destination, DomainPattern, Egress, NetworkPolicy, Target, Transport};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::NetError;
use super::special::{is_never, lies_in_special};

const TCP: u8 = 6;
const UDP: u8 = 17;
/// What has no ports that rules could look at.
const OTHER: [RangeInclusive<u8>; 3] = [0..=5, 7..=16, 18..=255];
const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;

/// A box of addresses, transports and ports that is let out. No two of one set share a point: kernels refuse that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Opening {
    /// Where to.
    pub(super) net: IpNet,
    /// IP protocol numbers.
    pub(super) protocols: RangeInclusive<u8>,
    /// Ports.
    pub(super) ports: RangeInclusive<u16>,
}

/// Names that resolve, and on which ports their addresses are then open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameRule {
    /// Which names.
    pub(super) pattern: DomainPattern,
    /// IP protocol and port, one by one; everything where empty.
    pub(super) services: Vec<(u8, u16)>,
}

/// Which names a sandbox may resolve.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Names {
    /// None.
    #[default]
    None,
    /// All; nothing has to be opened for their addresses.
    All,
    /// Those that are listed; their addresses are opened.
    Only(Vec<NameRule>),
}

/// A policy as it is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Filter {
    /// What is let out among special addresses.
    pub(super) explicit: Vec<Opening>,
    /// What else is let out.
    pub(super) named: Vec<Opening>,
    /// Which names resolve.
    pub(super) names: Names,
}

impl Filter {
    /// What a policy means.
    ///
    /// # Errors
    /// It names what no policy can open.
    pub(super) fn of(policy: &NetworkPolicy) -> Result<Self, NetError> {
        match &policy.egress {
            Egress::Deny | Egress::None => Ok(Self::default()),
            Egress::Allow => {
                let everywhere = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
                let named = disjoint(everywhere.into_iter().map(|net| (net, None, Vec::new())));
                Ok(Self { explicit: Vec::new(), named, names: Names::All })
            }
            Egress::Only(list) => Self::of_list(list),
        }
    }

    fn of_list(list: &[Destination]) -> Result<Self, NetError> {
        let (mut explicit, mut named, mut rules) = (Vec::new(), Vec::new(), Vec::new());
        for Destination { to, ports, transport } in list {
            match to {
                Target::Net(net) if is_never(*net) => return Err(NetError::NeverOpen(net.to_string())),
                Target::Net(net) if lies_in_special(*net) => explicit.push((*net, *transport, ports.clone())),
                Target::Net(net) => named.push((*net, *transport, ports.clone())),
                Target::Name(pattern) => {
                    let services = services(ports, *transport);
                    rules.push(NameRule { pattern: pattern.clone(), services });
                }
            }
        }
        let names = if rules.is_empty() { Names::None } else { Names::Only(rules) };
        Ok(Self { explicit: disjoint(explicit), named: disjoint(named), names })
    }
}

/// Protocol and port, one by one; none where everything is meant.
fn services(ports: &[RangeInclusive<u16>], transport: Option<Transport>) -> Vec<(u8, u16)> {
    let numbers: &[u8] = match transport {
        Some(Transport::Tcp) => &[TCP],
        Some(Transport::Udp) => &[UDP],
        None => &[TCP, UDP],
    };
    let ports = ports.iter().cloned().flatten();
    ports.flat_map(|port| numbers.iter().map(move |&number| (number, port))).collect()
}

type Wish = (IpNet, Option<Transport>, Vec<RangeInclusive<u16>>);

/// Boxes without common points that cover all wishes. Networks lie in one another or apart, so a network need only be
/// given the ports that none around it has.
fn disjoint(wishes: impl IntoIterator<Item = Wish>) -> Vec<Opening> {
    let mut by_class: [BTreeMap<IpNet, Vec<RangeInclusive<u16>>>; 3] = Default::default();
    let [tcp, udp, other] = &mut by_class;
    for (net, transport, ports) in wishes {
        let all = if ports.is_empty() { vec![ALL_PORTS] } else { ports.clone() };
        if transport != Some(Transport::Udp) {
            tcp.entry(net).or_default().extend(all.iter().cloned());
        }
        if transport != Some(Transport::Tcp) {
            udp.entry(net).or_default().extend(all);
        }
        if transport.is_none() && ports.is_empty() {
            other.entry(net).or_default().push(ALL_PORTS);
        }
    }
    let numbers = [vec![TCP..=TCP], vec![UDP..=UDP], OTHER.to_vec()];
    let mut openings = Vec::new();
    for (class, numbers) in by_class.iter().zip(numbers) {
        for (&net, ports) in class {
            let around = class.iter().filter(|(other, _)| **other != net && other.contains(&net));
            let taken = merged(around.flat_map(|(_, ports)| ports.iter().cloned()));
            for ports in minus(merged(ports.iter().cloned()), &taken) {
                let boxes = numbers.iter().cloned();
                openings.extend(boxes.map(|protocols| Opening { net, protocols, ports: ports.clone() }));
            }
        }
    }
    openings
}

/// The same ports in ascending ranges that do not touch.
fn merged(ranges: impl IntoIterator<Item = RangeInclusive<u16>>) -> Vec<RangeInclusive<u16>> {
    let mut sorted: Vec<_> = ranges.into_iter().collect();
    sorted.sort_by_key(|range| *range.start());
    let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
    for range in sorted {
        match merged.last_mut() {
            Some(last) if *range.start() <= last.end().saturating_add(1) => {
                *last = *last.start()..=*last.end().max(range.end());
            }
            _ => merged.push(range),
        }
    }
    merged
}

/// What of `ranges` is in none of `taken`; both are [`merged`].
fn minus(ranges: Vec<RangeInclusive<u16>>, taken: &[RangeInclusive<u16>]) -> Vec<RangeInclusive<u16>> {
    taken.iter().fold(ranges, |left, hole| {
        left.into_iter()
            .flat_map(|range| {
                let below = hole.start().checked_sub(1).map(|end| *range.start()..=end.min(*range.end()));
                let above = hole.end().checked_add(1).map(|start| start.max(*range.start())..=*range.end());
                below.into_iter().chain(above).filter(|part| !part.is_empty())
            })
            .collect()
    })
}

impl Opening {
    /// First and last key of its box: address, protocol and port, each filled up to four bytes.
    pub(super) fn keys(&self) -> (Vec<u8>, Vec<u8>) {
        let (first, last) = match self.net {
            IpNet::V4(net) => (net.network().octets().to_vec(), net.broadcast().octets().to_vec()),
            IpNet::V6(net) => (net.network().octets().to_vec(), net.broadcast().octets().to_vec()),
        };
        (
            key(first, *self.protocols.start(), *self.ports.start()),
            key(last, *self.protocols.end(), *self.ports.end()),
        )
    }
}

/// The key of one address, protocol and port.
pub(super) fn key(mut address: Vec<u8>, protocol: u8, port: u16) -> Vec<u8> {
    address.extend([protocol, 0, 0, 0]);
    address.extend(port.to_be_bytes());
    address.extend([0, 0]);
    address
}

/// Whether a set of this family takes it.
pub(super) fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

/// Bytes of an address.
pub(super) fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(v4) => Ipv4Addr::octets(&v4).to_vec(),
        std::net::IpAddr::V6(v6) => Ipv6Addr::octets(&v6).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn filter(policy: serde_json::Value) -> Filter {
        Filter::of(&serde_json::from_value(policy).unwrap()).unwrap()
    }

    fn opens(openings: &[Opening], address: &str, protocol: u8, port: u16) -> usize {
        let address: IpNet = address.parse::<std::net::IpAddr>().unwrap().into();
        let fits = |o: &&Opening| {
            o.net.contains(&address) && o.protocols.contains(&protocol) && o.ports.contains(&port)
        };
        openings.iter().filter(fits).count()
    }

    #[test]
    fn words() {
        assert_eq!(filter(json!("deny")), Filter::default());
        assert_eq!(filter(json!("none")), Filter::default());
        let allow = filter(json!("allow"));
        assert!(allow.explicit.is_empty());
        assert_eq!(allow.names, Names::All);
        for (protocol, port) in [(6, 443), (17, 53), (1, 0), (58, 0xffff)] {
            assert_eq!(opens(&allow.named, "1.1.1.1", protocol, port), 1);
            assert_eq!(opens(&allow.named, "2606::1", protocol, port), 1);
        }
    }

    #[test]
    fn a_list_opens_exactly_what_it_names() {
        let list = filter(json!([
            "192.0.2.0/24:443",
            {"to": "192.0.2.7", "ports": ["400-500", 80]},
            {"to": "10.0.0.0/8", "protocol": "udp"},
            "169.254.169.254",
            "2001:db8::/32",
            "example.com",
        ]));
        for (address, protocol, port, count) in [
            ("192.0.2.1", 6, 443, 1),
            ("192.0.2.1", 6, 444, 0),
            ("192.0.2.7", 6, 443, 1),
            ("192.0.2.7", 17, 400, 1),
            ("192.0.2.7", 6, 80, 1),
            ("192.0.2.1", 1, 443, 0),
            ("2001:db8::9", 58, 9, 1),
            ("10.0.0.1", 17, 9, 0),
        ] {
            assert_eq!(opens(&list.named, address, protocol, port), count, "{address} {protocol} {port}");
        }
        assert_eq!(opens(&list.explicit, "10.1.2.3", 17, 9), 1);
        assert_eq!(opens(&list.explicit, "10.1.2.3", 6, 9), 0);
        assert_eq!(opens(&list.explicit, "169.254.169.254", 6, 80), 1);
        assert!(
            matches!(list.names, Names::Only(ref rules) if rules.len() == 1 && rules[0].services.is_empty())
        );
    }

    #[test]
    fn all_addresses_are_not_the_special_ones() {
        let list = filter(json!(["0.0.0.0/0", "::/0"]));
        assert!(list.explicit.is_empty());
        let never: NetworkPolicy = serde_json::from_value(json!(["198.18.0.0/16"])).unwrap();
        assert!(matches!(Filter::of(&never), Err(NetError::NeverOpen(_))));
    }

    #[test]
    fn keys_are_as_sets_of_three_fields_have_them() {
        let opening = Opening { net: "10.0.0.0/8".parse().unwrap(), protocols: 6..=6, ports: 80..=443 };
        let (first, last) = opening.keys();
        assert_eq!(first, [10, 0, 0, 0, 6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(last, [10, 255, 255, 255, 6, 0, 0, 0, 1, 187, 0, 0]);
    }

    fn wish() -> impl Strategy<Value = Wish> {
        let net = (0u8..4, 22u8..=32).prop_map(|(low, len)| {
            IpNet::V4(Ipv4Net::new(Ipv4Addr::new(1, 0, low, 0), len).unwrap().trunc())
        });
        let transport = prop_oneof![Just(None), Just(Some(Transport::Tcp)), Just(Some(Transport::Udp))];
        let ports = prop::collection::vec((0u16..20, 0u16..20).prop_map(|(a, b)| a.min(b)..=a.max(b)), 0..3);
        (net, transport, ports)
    }

    proptest! {
        #[test]
        fn boxes_cover_the_wishes_and_nothing_twice(
            wishes in prop::collection::vec(wish(), 0..8),
            points in prop::collection::vec((0u8..4, 0u8..2, 0u16..22, 0usize..3), 50),
        ) {
            let boxes = disjoint(wishes.clone());
            for (high, low, port, class) in points {
                let (address, number) = (format!("1.0.{high}.{low}"), [6, 17, 1][class]);
                let point: IpNet = address.parse::<std::net::IpAddr>().unwrap().into();
                let wished = wishes.iter().any(|(net, transport, ports)| net.contains(&point)
                    && match transport { Some(Transport::Tcp) => class == 0, Some(Transport::Udp) => class == 1, None => class < 2 || ports.is_empty() }
                    && (ports.is_empty() || ports.iter().any(|range| range.contains(&port))));
                prop_assert_eq!(opens(&boxes, &address, number, port), usize::from(wished));
            }
        }
    }
}
