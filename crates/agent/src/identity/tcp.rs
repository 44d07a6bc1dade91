//! TCP connections that a child has inherited: both sides of a fork would send on one flow.
//!
//! Listeners stay, and so do connections whose both ends are inside the guest, since both were cloned.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use super::Change;
use super::steps::StepError;

/// `TCP_LISTEN` as /proc/net/tcp writes it.
const LISTEN: u8 = 0x0a;
/// linux/sock_diag.h and linux/inet_diag.h.
const SOCK_DESTROY: u16 = 21;
const INET_DIAG_NOCOOKIE: u32 = u32::MAX;
const NLMSG_ERROR: u16 = 2;
const HEADER: usize = 16;
const REQUEST: usize = 56;

#[derive(Debug, PartialEq, Eq)]
struct Connection {
    local: (IpAddr, u16),
    remote: (IpAddr, u16),
}

pub(super) fn destroy_inherited(_: &Change<'_>) -> Result<(), StepError> {
    if !any_sockets() {
        return Ok(());
    }
    let mut connections = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // The second is missing in a kernel without IPv6.
        connections.extend(fs::read_to_string(table).iter().flat_map(|text| inherited(text)));
    }
    if connections.is_empty() {
        return Ok(());
    }
    let netlink =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    for connection in connections {
        sendto(netlink.as_raw_fd(), &message(&connection), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        let mut answer = [0; 512];
        let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        match error_of(answer.get(..length).unwrap_or_default()) {
            // It ended by itself meanwhile.
            Errno::UnknownErrno | Errno::ENOENT => {}
            errno => return Err(format!("{connection:?}: {errno}").into()),
        }
    }
    Ok(())
}

/// A look at two counters: the tables themselves are walked in full, which in a large guest takes milliseconds.
fn any_sockets() -> bool {
    // Without the counters, the tables have to be read; those of IPv6 are missing in a kernel without it.
    fs::read_to_string("/proc/net/sockstat").map_or(true, |text| counts_sockets(&text))
        || fs::read_to_string("/proc/net/sockstat6").is_ok_and(|text| counts_sockets(&text))
}

/// Waiting ones are counted apart from those in use.
fn counts_sockets(counters: &str) -> bool {
    let tcp = counters.lines().filter(|line| line.starts_with("TCP"));
    let mut numbers = tcp.flat_map(|line| {
        let words: Vec<&str> = line.split_whitespace().skip(1).collect();
        let counted = words.chunks_exact(2).filter(|pair| matches!(pair[0], "inuse" | "tw" | "orphan"));
        counted.map(|pair| pair[1].to_owned()).collect::<Vec<_>>()
    });
    numbers.any(|number| number != "0")
}

fn inherited(table: &str) -> impl Iterator<Item = Connection> {
    table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace();
        let local = address(fields.nth(1)?)?;
        let remote = address(fields.next()?)?;
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        let inside = local.0.to_canonical().is_loopback() && remote.0.to_canonical().is_loopback();
        (state != LISTEN && !inside).then_some(Connection { local, remote })
    })
}

/// Words of four bytes in the byte order of the machine, then the port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let words = (0..address.len() / 8).map(|i| u32::from_str_radix(address.get(i * 8..i * 8 + 8)?, 16).ok());
    let bytes: Vec<u8> =
        words.collect::<Option<Vec<u32>>>()?.into_iter().flat_map(u32::to_ne_bytes).collect();
    let address = match bytes.len() {
        4 => IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => return None,
    };
    Some((address, port))
}

/// A netlink header and a `struct inet_diag_req_v2` that names one connection.
fn message(connection: &Connection) -> Vec<u8> {
    let family = if connection.local.0.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut message = Vec::with_capacity(HEADER + REQUEST);
    message.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    message.extend(SOCK_DESTROY.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]); // sequence, port id
    message.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes()); // any state
    message.extend(connection.local.1.to_be_bytes());
    message.extend(connection.remote.1.to_be_bytes());
    message.extend(sixteen_bytes(connection.local.0));
    message.extend(sixteen_bytes(connection.remote.0));
    message.extend(0_u32.to_ne_bytes()); // any interface
    message.extend(INET_DIAG_NOCOOKIE.to_ne_bytes());
    message.extend(INET_DIAG_NOCOOKIE.to_ne_bytes());
    message
}

fn sixteen_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    }
}

/// The error in an acknowledgement; `UnknownErrno` is 0, success.
fn error_of(answer: &[u8]) -> Errno {
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error =
        answer.get(HEADER..HEADER + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes);
    match (kind, error) {
        (Some(NLMSG_ERROR), Some(error)) => Errno::from_raw(error.saturating_neg()),
        _ => Errno::EBADMSG,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "  sl  local_address rem_address   st tx_queue\n\
        0: 00000000:1F90 00000000:0000 0A 00000000:00000000\n\
        1: 0F02000A:9C40 08080808:01BB 01 00000000:00000000\n\
        2: 0100007F:9C40 0100007F:1F90 01 00000000:00000000\n\
        3: nonsense\n";

    #[test]
    fn only_connections_that_leave_the_guest() {
        let found: Vec<Connection> = inherited(TABLE).collect();
        let expected = Connection {
            local: (IpAddr::from([10, 0, 2, 15]), 40000),
            remote: (IpAddr::from([8, 8, 8, 8]), 443),
        };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn counters() {
        assert!(!counts_sockets(
            "sockets: used 30\nTCP: inuse 0 orphan 0 tw 0 alloc 1 mem 1\nUDP: inuse 2 mem 0\n"
        ));
        assert!(counts_sockets("TCP: inuse 0 orphan 0 tw 1 alloc 0 mem 0\n"));
        assert!(counts_sockets("TCP6: inuse 1\n") && !counts_sockets("TCP6: inuse 0\nUDP6: inuse 1\n"));
    }

    #[test]
    fn ipv6_and_mapped_loopback() {
        let (address, port) = address("0000000000000000FFFF00000100007F:0050").unwrap();
        assert_eq!(port, 80);
        assert!(address.to_canonical().is_loopback());
    }

    #[test]
    fn message_has_the_size_of_the_kernel_struct() {
        let connection = Connection { local: ([10, 0, 0, 1].into(), 1), remote: ([1, 1, 1, 1].into(), 2) };
        assert_eq!(message(&connection).len(), HEADER + REQUEST);
        assert_eq!(error_of(&[0; 3]), Errno::EBADMSG);
    }

    /// Destroys a connection of its own, where the kernel and our rights allow it.
    #[test]
    fn the_kernel_takes_it() {
        use std::io::Read;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, peer) = listener.accept().unwrap();
        let connection = Connection {
            local: (peer.ip(), peer.port()),
            remote: (server.local_addr().unwrap().ip(), server.local_addr().unwrap().port()),
        };
        let Ok(netlink) = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkSockDiag,
        ) else {
            forkd_testkit::guard::met("sock_diag", Err("this kernel has no socket diagnosis".to_owned()));
            return;
        };
        sendto(netlink.as_raw_fd(), &message(&connection), &NetlinkAddr::new(0, 0), MsgFlags::empty())
            .unwrap();
        let mut answer = [0; 512];
        let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty()).unwrap();
        match error_of(&answer[..length]) {
            Errno::UnknownErrno => {
                assert!(server.read(&mut [0; 1]).is_err());
                drop(client);
            }
            errno => {
                forkd_testkit::guard::met(
                    "sock_diag",
                    Err(format!("this kernel destroys no sockets: {errno}")),
                );
            }
        }
    }
}
