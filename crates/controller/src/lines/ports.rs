//! Which ports of loopback sandboxes may have.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

use tokio::net::TcpListener;

/// Where published clients may reach sandboxes over TCP, on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GuestPorts {
    /// Any port that is free.
    #[default]
    Any,
    /// One of these; a sandbox that finds none free has no address.
    Range {
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Nowhere.
    Off,
}

/// What is written is no range of ports.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no range of ports: write FIRST-LAST such as 20000-20063, or any, or off")]
pub struct GuestPortsParseError(String);

impl FromStr for GuestPorts {
    type Err = GuestPortsParseError;

    fn from_str(given: &str) -> Result<Self, GuestPortsParseError> {
        let range = |(first, last): (&str, &str)| {
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (0 < first && first <= last).then_some(Self::Range { first, last })
        };
        match given {
            "any" => Ok(Self::Any),
            "off" => Ok(Self::Off),
            _ => given.split_once('-').and_then(range).ok_or_else(|| GuestPortsParseError(given.to_owned())),
        }
    }
}

impl GuestPorts {
    /// Takes one that is free; `None` where none may be had.
    pub(super) fn take(self) -> io::Result<Option<TcpListener>> {
        match self {
            Self::Any => bind(0).map(Some),
            Self::Range { first, last } => {
                let taken = |e: &io::Error| e.kind() == io::ErrorKind::AddrInUse;
                let free = (first..=last).map(bind).find(|bound| !bound.as_ref().is_err_and(taken));
                free.transpose()
            }
            Self::Off => Ok(None),
        }
    }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_or_a_range() {
        assert_eq!("any".parse(), Ok(GuestPorts::Any));
        assert_eq!("off".parse(), Ok(GuestPorts::Off));
        assert_eq!("20000-20063".parse(), Ok(GuestPorts::Range { first: 20000, last: 20063 }));
        assert_eq!("7-7".parse(), Ok(GuestPorts::Range { first: 7, last: 7 }));
        for bad in ["", "0-1", "2-1", "1", "1-", "-1", "1-65536", "a-b"] {
            assert!(bad.parse::<GuestPorts>().is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_range_is_used_up_and_not_left() {
        let probe = GuestPorts::Any.take().unwrap().unwrap();
        let port = probe.local_addr().unwrap().port();
        let one = GuestPorts::Range { first: port, last: port };
        assert!(one.take().unwrap().is_none(), "it is taken");
        drop(probe);
        assert_eq!(one.take().unwrap().unwrap().local_addr().unwrap().port(), port);
        assert!(GuestPorts::Off.take().unwrap().is_none());
    }
}
