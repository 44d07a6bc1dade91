//! A connection of the host's becomes one to a port of the guest: the guest needs no network for that.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use forkd_protocol::guest::{
    GuestRefusal, PATH_TUNNEL, PORT_NOT_OPEN, TUNNEL_ECHO, TUNNEL_PROTOCOL, TUNNEL_SOURCE,
};
use hyper::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::{Method, Request, StatusCode};
use tokio::io::{
    AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, copy, copy_bidirectional_with_sizes, copy_buf, repeat,
    split,
};
use tokio::net::TcpStream;

use crate::http::{Body, Response};

/// How long one address may take: a listener whose queue is full does not answer.
const CONNECT_BOUND: Duration = Duration::from_secs(5);
/// Bytes on their way in each direction.
const BUFFER: usize = 64 * 1024;

/// Where a tunnel is to lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Port(u16),
    Echo,
    Source,
    /// What the request names is neither.
    Unknown,
}

/// The far end of a tunnel.
#[derive(Debug)]
pub(crate) enum Tunnel {
    Port(TcpStream),
    Echo,
    Source,
}

/// Why there is no tunnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    #[error("a tunnel leads to a port from 1 to 65535")]
    NoPort,
    #[error("nothing listens on port {0} in the sandbox")]
    NotOpen(u16),
    #[error("port {port} in the sandbox takes no connection: {source}")]
    Refused { port: u16, source: io::Error },
}

/// Where a request's connection is to lead, if it asks for that.
pub(crate) fn wanted<B>(request: &Request<B>) -> Option<Target> {
    let to = request.uri().path().strip_prefix(PATH_TUNNEL)?;
    let upgrade = request.headers().get(UPGRADE).and_then(|value| value.to_str().ok());
    if request.method() != Method::POST || upgrade != Some(TUNNEL_PROTOCOL) {
        return None;
    }
    Some(match to.parse() {
        _ if to == TUNNEL_ECHO => Target::Echo,
        _ if to == TUNNEL_SOURCE => Target::Source,
        Ok(port) if port != 0 => Target::Port(port),
        _ => Target::Unknown,
    })
}

/// The answer after which the connection is a tunnel.
pub(crate) fn switching() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(TUNNEL_PROTOCOL));
    response
}

impl Target {
    /// Connects: to the loopback addresses first, then to what else the guest is called, since a server may listen on
    /// one of them only.
    pub(crate) async fn reach(self) -> Result<Tunnel, TunnelError> {
        let port = match self {
            Self::Echo => return Ok(Tunnel::Echo),
            Self::Source => return Ok(Tunnel::Source),
            Self::Unknown => return Err(TunnelError::NoPort),
            Self::Port(port) => port,
        };
        let mut hindrance = None;
        for address in loopback(port).into_iter().chain(own_addresses(port)) {
            match connect(address).await {
                Ok(stream) => return Ok(Tunnel::Port(stream)),
                // It refuses also where another address has a listener.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(e) => hindrance = Some(e),
            }
        }
        Err(match hindrance {
            // Without IPv6 there is nobody at ::1.
            Some(e) if e.kind() != io::ErrorKind::AddrNotAvailable => {
                TunnelError::Refused { port, source: e }
            }
            _ => TunnelError::NotOpen(port),
        })
    }
}

impl Tunnel {
    /// Carries bytes both ways. An end of one direction is passed on, and the other goes on; it is over when both have
    /// ended, or one has broken.
    pub(crate) async fn carry<S: AsyncRead + AsyncWrite + Unpin>(self, mut host: S, first: &[u8]) {
        // How it ends is seen by both ends, and means nothing to anybody else.
        let _ = match self {
            Self::Port(mut guest) => {
                async {
                    guest.write_all(first).await?;
                    copy_bidirectional_with_sizes(&mut host, &mut guest, BUFFER, BUFFER).await.map(drop)
                }
                .await
            }
            Self::Source => {
                // In pieces as large as those of a port.
                let mut zeroes = BufReader::with_capacity(BUFFER, repeat(0));
                copy_buf(&mut zeroes, &mut host).await.map(drop)
            }
            Self::Echo => {
                async {
                    host.write_all(first).await?;
                    let (mut read, mut write) = split(host);
                    copy(&mut read, &mut write).await?;
                    write.shutdown().await
                }
                .await
            }
        };
    }
}

impl TunnelError {
    pub(crate) fn into_response(self) -> Response {
        let (status, code) = match self {
            Self::NoPort => (StatusCode::BAD_REQUEST, "bad_request"),
            Self::NotOpen(_) => (StatusCode::BAD_GATEWAY, PORT_NOT_OPEN),
            Self::Refused { .. } => (StatusCode::BAD_GATEWAY, "port_refused"),
        };
        Body::json(status, &GuestRefusal { code: code.to_owned(), message: self.to_string() })
    }
}

fn loopback(port: u16) -> [SocketAddr; 2] {
    [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()].map(|ip| SocketAddr::new(ip, port))
}

/// Of the guest's other interfaces, with the zone that a link-local one needs.
fn own_addresses(port: u16) -> Vec<SocketAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|a| SocketAddr::new(a.ip().into(), port));
        let v6 = address
            .as_sockaddr_in6()
            .map(|a| SocketAddrV6::new(a.ip(), port, a.flowinfo(), a.scope_id()).into());
        v4.or(v6)
    });
    addresses.filter(|address| !address.ip().is_loopback()).collect()
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let connecting = tokio::time::timeout(CONNECT_BOUND, TcpStream::connect(address));
    let stream = connecting.await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, path: &str, upgrade: &str) -> Option<Target> {
        wanted(&Request::builder().method(method).uri(path).header(UPGRADE, upgrade).body(()).unwrap())
    }

    #[test]
    fn only_an_upgrade_to_a_port_is_one() {
        let tunnel = |to: &str| asked(Method::POST, &format!("/forkd/v1/tunnel/{to}"), TUNNEL_PROTOCOL);
        assert_eq!(tunnel("8000"), Some(Target::Port(8000)));
        assert_eq!(tunnel("echo"), Some(Target::Echo));
        assert_eq!(tunnel("source"), Some(Target::Source));
        for bad in ["0", "65536", "-1", "", "80/x", "%38"] {
            assert_eq!(tunnel(bad), Some(Target::Unknown), "{bad:?}");
        }
        assert_eq!(asked(Method::GET, "/forkd/v1/tunnel/80", TUNNEL_PROTOCOL), None);
        assert_eq!(asked(Method::POST, "/forkd/v1/tunnel/80", "websocket"), None);
        assert_eq!(asked(Method::POST, "/files", TUNNEL_PROTOCOL), None);
    }

    #[test]
    fn own_addresses_have_the_port_and_are_not_loopback() {
        assert!(own_addresses(7).iter().all(|address| address.port() == 7 && !address.ip().is_loopback()));
    }
}
