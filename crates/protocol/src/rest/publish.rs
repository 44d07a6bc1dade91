//! Ports of a sandbox that are reachable at addresses of its host.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Most ports of one sandbox that are published.
pub const MAX_PUBLISHED: usize = 32;

/// A port of a sandbox, and where on its host it is to be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Publish {
    /// Address to listen at, such as `127.0.0.1:8080`; port 0 is any.
    #[schema(value_type = String)]
    pub host: SocketAddr,
    /// Port in the sandbox.
    pub guest: u16,
}

/// A published port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Published {
    /// Which, and where.
    #[serde(flatten)]
    pub port: Publish,
    /// Whether it is listened at. After a restart of the controller another program may have the address; it is tried
    /// again until the sandbox ends.
    pub listening: bool,
}

/// What is written is no port to publish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} publishes no port: write [IP:]HOST_PORT:GUEST_PORT, such as 8080:80 or [::1]:8080:80")]
pub struct PublishParseError(String);

impl FromStr for Publish {
    type Err = PublishParseError;

    /// `[IP:]HOST:GUEST`; without an address on loopback.
    fn from_str(given: &str) -> Result<Self, PublishParseError> {
        let wrong = || PublishParseError(given.to_owned());
        let (host, guest) = given.rsplit_once(':').ok_or_else(wrong)?;
        let guest = guest.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?;
        let loopback = |port| SocketAddr::new(IpAddr::from(Ipv4Addr::LOCALHOST), port);
        let host = host.parse().map(loopback).or_else(|_| host.parse()).map_err(|_| wrong())?;
        Ok(Self { host, guest })
    }
}

impl fmt::Display for Publish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.guest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_loopback_unless_an_address_is_given() {
        for (given, shown) in [
            ("8080:80", "127.0.0.1:8080:80"),
            ("0:80", "127.0.0.1:0:80"),
            ("0.0.0.0:8080:80", "0.0.0.0:8080:80"),
            ("[::1]:8080:80", "[::1]:8080:80"),
        ] {
            let read: Publish = given.parse().unwrap();
            assert_eq!(read.to_string(), shown);
            assert_eq!(shown.parse(), Ok(read));
        }
        for bad in
            ["", "80", ":80", "80:", "80:0", "x:80", "70000:80", "localhost:80:80", "::1:80:80", "1:2:3"]
        {
            assert!(bad.parse::<Publish>().is_err(), "{bad:?}");
        }
    }
}
