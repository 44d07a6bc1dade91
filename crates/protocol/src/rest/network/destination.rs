//! One place that a sandbox may reach.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;
use serde_json::{Value, json};

use super::PolicyError;

/// Most port ranges of one destination.
pub const MAX_PORT_RANGES: usize = 16;
/// Most ports of a destination that is a name, counted one by one.
const MAX_NAME_PORTS: usize = 64;

/// Where to, on which ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Addresses, or names.
    pub to: Target,
    /// Which ports; all where there are none.
    pub ports: Vec<Ports>,
    /// Over what; anything where absent.
    pub transport: Option<Transport>,
}

/// Addresses or names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Every address of a network.
    Net(IpNet),
    /// What names resolve to, as long as the answer is valid.
    Name(DomainPattern),
}

/// Ports from the first to the last.
pub type Ports = RangeInclusive<u16>;

/// What has ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// One name, or with `*.` every name below one (which is not that one itself).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DomainPattern {
    name: String,
    below: bool,
}

impl DomainPattern {
    /// Whether this name is meant. Case and a dot at its end make no difference.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        if !self.below {
            return name.eq_ignore_ascii_case(&self.name);
        }
        // The label in front of the suffix must be there, and end with the dot.
        let Some(split) = name.len().checked_sub(self.name.len() + 1).filter(|&at| at > 0) else {
            return false;
        };
        match (name.get(..split), name.get(split..=split), name.get(split + 1..)) {
            (Some(front), Some("."), Some(rest)) => {
                !front.ends_with('.') && rest.eq_ignore_ascii_case(&self.name)
            }
            _ => false,
        }
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)
    }
}

impl FromStr for DomainPattern {
    type Err = &'static str;

    fn from_str(given: &str) -> Result<Self, &'static str> {
        let (below, name) = given.strip_prefix("*.").map_or((false, given), |name| (true, name));
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let in_label = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-' || c == b'_';
        let is_label = |l: &str| {
            (1..=63).contains(&l.len()) && l.bytes().all(in_label) && !l.starts_with('-') && !l.ends_with('-')
        };
        if name.len() > 253 || !name.split('.').all(is_label) {
            return Err("it is neither an address nor a name of letters, digits and dashes");
        }
        // What ends in a number is an address in one of its many spellings, to somebody.
        if !name.rsplit('.').next().is_some_and(|last| last.starts_with(|c: char| c.is_ascii_lowercase())) {
            return Err("an address is written as a.b.c.d, a.b.c.d/len or the like in IPv6");
        }
        Ok(Self { name, below })
    }
}

impl FromStr for Destination {
    type Err = PolicyError;

    fn from_str(given: &str) -> Result<Self, PolicyError> {
        let refused = |reason| PolicyError::Destination { given: given.to_owned(), reason };
        let (to, ports) = split_ports(given).map_err(refused)?;
        let ports = ports.map(|text| range(text).map_err(refused)).transpose()?;
        let destination =
            Self { to: target(to).map_err(refused)?, ports: ports.into_iter().collect(), transport: None };
        destination.checked(given)
    }
}

impl Destination {
    fn checked(self, given: &str) -> Result<Self, PolicyError> {
        let refused = |reason| Err(PolicyError::Destination { given: given.to_owned(), reason });
        if self.ports.len() > MAX_PORT_RANGES {
            return refused("it has more than 16 ranges of ports");
        }
        let count: usize = self.ports.iter().map(ExactSizeIterator::len).sum();
        if matches!(self.to, Target::Name(_)) && count > MAX_NAME_PORTS {
            return refused("a name can be given 64 ports at most");
        }
        if matches!(self.to, Target::Name(_)) && self.transport.is_some() && self.ports.is_empty() {
            return refused("a name with a protocol needs ports");
        }
        Ok(self)
    }
}

/// `[v6]:ports`, `v6` without ports, `rest:ports`.
fn split_ports(given: &str) -> Result<(&str, Option<&str>), &'static str> {
    if let Some(bracketed) = given.strip_prefix('[') {
        let (to, rest) = bracketed.split_once(']').ok_or("the bracket is not closed")?;
        return match rest.strip_prefix(':') {
            None if rest.is_empty() => Ok((to, None)),
            None => Err("only :port goes behind the bracket"),
            ports => Ok((to, ports)),
        };
    }
    match given.split_once(':') {
        Some((to, ports)) if !ports.contains(':') && !to.is_empty() => Ok((to, Some(ports))),
        _ => Ok((given, None)),
    }
}

fn target(to: &str) -> Result<Target, &'static str> {
    let net = match (to.parse::<IpNet>(), to.parse::<IpAddr>()) {
        (Ok(net), _) => net,
        (_, Ok(address)) => address.into(),
        _ => return Ok(Target::Name(to.parse()?)),
    };
    match net {
        IpNet::V6(v6) if v6.addr().to_ipv4_mapped().is_some() => {
            Err("write it as the IPv4 address that it is")
        }
        net if net.trunc() != net => Err("it has bits behind its prefix"),
        net => Ok(Target::Net(net)),
    }
}

fn range(text: &str) -> Result<Ports, &'static str> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(first..=last),
        _ => Err("ports are 1 to 65535, or first-last"),
    }
}

impl TryFrom<Value> for Destination {
    type Error = PolicyError;

    fn try_from(given: Value) -> Result<Self, PolicyError> {
        let shown = given.to_string();
        let refused = |reason| PolicyError::Destination { given: shown.clone(), reason };
        let mut fields = match given {
            Value::String(text) => return text.parse(),
            Value::Object(fields) => fields,
            _ => return Err(refused("it is neither a text nor an object")),
        };
        let Some(Value::String(to)) = fields.remove("to") else { return Err(refused("it lacks `to`")) };
        let mut destination: Self = to.parse()?;
        match fields.remove("ports") {
            None | Some(Value::Null) => {}
            Some(Value::Array(list)) if list.len() <= MAX_PORT_RANGES => {
                for ports in list {
                    let text = ports.as_str().map_or_else(|| ports.to_string(), str::to_owned);
                    destination.ports.push(range(&text).map_err(refused)?);
                }
            }
            Some(_) => return Err(refused("ports are a list of 16 at most")),
        }
        destination.transport = match fields.remove("protocol") {
            None | Some(Value::Null) => None,
            Some(Value::String(word)) if word == "tcp" => Some(Transport::Tcp),
            Some(Value::String(word)) if word == "udp" => Some(Transport::Udp),
            Some(_) => return Err(refused("the protocol is tcp or udp")),
        };
        if !fields.is_empty() {
            return Err(refused("it has other fields than to, ports and protocol"));
        }
        destination.checked(&shown)
    }
}

impl From<Destination> for Value {
    fn from(destination: Destination) -> Self {
        let Destination { to, ports, transport } = destination;
        let to = match to {
            Target::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().to_string(),
            Target::Net(net) => net.to_string(),
            Target::Name(pattern) => pattern.to_string(),
        };
        if ports.is_empty() && transport.is_none() {
            return to.into();
        }
        let mut fields = serde_json::Map::from_iter([("to".to_owned(), json!(to))]);
        if !ports.is_empty() {
            let list = ports.iter().map(|range| match (*range.start(), *range.end()) {
                (first, last) if first == last => json!(first),
                (first, last) => json!(format!("{first}-{last}")),
            });
            fields.insert("ports".to_owned(), list.collect());
        }
        if let Some(transport) = transport {
            let word = if transport == Transport::Tcp { "tcp" } else { "udp" };
            fields.insert("protocol".to_owned(), json!(word));
        }
        Self::Object(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> DomainPattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_means_itself_and_a_wildcard_what_is_below() {
        let exact = pattern("Example.com.");
        for (name, meant) in [
            ("example.com", true),
            ("EXAMPLE.com.", true),
            ("notexample.com", false),
            ("www.example.com", false),
            ("example.com.evil.org", false),
            ("com", false),
            ("", false),
        ] {
            assert_eq!(exact.matches(name), meant, "{name}");
        }
        let below = pattern("*.example.com");
        for (name, meant) in [
            ("www.example.com", true),
            ("a.b.Example.Com.", true),
            ("example.com", false),
            (".example.com", false),
            ("notexample.com", false),
            ("x.notexample.com", false),
            ("www.example.com.evil.org", false),
        ] {
            assert_eq!(below.matches(name), meant, "{name}");
        }
    }

    #[test]
    fn texts_are_taken_apart() {
        for (text, to, ports) in [
            ("1.1.1.1", "1.1.1.1/32", None),
            ("10.0.0.0/8:443", "10.0.0.0/8", Some(443..=443)),
            ("2001:db8::/32", "2001:db8::/32", None),
            ("[2001:db8::1]:80-90", "2001:db8::1/128", Some(80..=90)),
        ] {
            let parsed: Destination = text.parse().unwrap();
            assert_eq!(parsed.to, Target::Net(to.parse().unwrap()), "{text}");
            assert_eq!(parsed.ports, Vec::from_iter(ports), "{text}");
        }
        let parsed: Destination = "*.example.com:8443".parse().unwrap();
        assert_eq!((parsed.to, parsed.ports), (Target::Name(pattern("*.example.com")), vec![8443..=8443]));
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "",
            "*",
            "*.",
            "a..b",
            "-a.com",
            "a_b-.com",
            "0x7f000001",
            "127.1",
            "010.0.0.1",
            "1.2.3.4.5",
            "10.0.0.1/8",
            "::ffff:1.2.3.4",
            "::ffff:0:0/96",
            "[::1",
            "[::1]x",
            "a.com:0",
            "a.com:70000",
            "a.com:9-8",
            "a.com:1-65",
            "ex ample.com",
            "*.*.com",
            "münchen.de",
            "1.2.3.4/33",
        ] {
            assert!(text.parse::<Destination>().is_err(), "{text:?}");
        }
    }
}
