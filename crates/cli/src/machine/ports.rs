//! Ports of this computer's loopback.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use super::error::MachineError;

/// The port, if nobody listens on it.
pub(crate) fn want(port: u16) -> Result<u16, MachineError> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(port),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(MachineError::PortTaken { port }),
        Err(e) => Err(MachineError::io("listen on", format!("127.0.0.1:{port}"), e)),
    }
}

/// Any port that nobody listens on; the one from last time if it can be had.
pub(crate) fn any(last: Option<u16>, not: u16) -> Result<u16, MachineError> {
    if let Some(port) = last.filter(|&port| port != not && want(port).is_ok()) {
        return Ok(port);
    }
    loop {
        let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        let port = bound.map_err(|e| MachineError::io("listen on", "127.0.0.1:0", e))?.port();
        if port != not {
            return Ok(port);
        }
    }
}

/// Sandboxes of a machine that published clients reach at once.
const GUESTS: u16 = 32;

/// Ports at which published clients reach sandboxes, the first and the last: others for machines whose API has another
/// port, and below those that connections out of here have. `None` where somebody listens on one of them.
pub(crate) fn for_guests(api_port: u16) -> Option<(u16, u16)> {
    let first = 10_000 + api_port % 700 * GUESTS;
    let last = first + GUESTS - 1;
    (first..=last).all(|port| want(port).is_ok()).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_ports_of_their_own_for_guests_or_none() {
        let (first, last) = for_guests(8889).unwrap();
        assert!(for_guests(8899).is_none_or(|(other, _)| last < other));
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first + 3)).unwrap();
        assert_eq!(for_guests(8889), None);
    }

    #[test]
    fn a_taken_port_is_refused_and_another_one_found() {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(matches!(want(port), Err(MachineError::PortTaken { port: p }) if p == port));
        assert_ne!(any(Some(port), 1).unwrap(), port);
        drop(taken);
        assert_eq!(any(Some(port), 1).unwrap(), port, "the port of last time is kept");
        assert_ne!(any(Some(port), port).unwrap(), port);
    }
}
