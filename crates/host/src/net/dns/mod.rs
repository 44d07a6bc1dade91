//! The resolver that guests ask: the only name server that a restricted sandbox reaches.
//!
//! It listens in the sandbox's namespace, at the gateway's address, and asks the host's own name servers from the
//! host's namespace, where a stub on 127.0.0.53 is as good as any other. Where a policy lists names it answers for those
//! alone, and an address is open before its answer leaves, for as long as the answer is valid.

mod answer;
mod upstream;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tracing::debug;

use self::answer::{Question, answer};
pub(super) use self::upstream::Upstream;
use super::gate::Gate;

const PORT: u16 = 53;
/// Longest question that is read.
const MAX_QUESTION: usize = 4096;
/// Questions and connections of one sandbox at once. What is beyond is not answered over UDP, and waits over TCP.
const MAX_AT_ONCE: usize = 32;
const MAX_CONNECTIONS: usize = 8;
/// A connection that says nothing.
const SILENCE: Duration = Duration::from_secs(10);
/// What a question without EDNS says of the answer's length, and the longest that is sent to one with it.
pub(super) const UDP_LEAST: usize = 512;
pub(super) const UDP_MOST: usize = 1232;

/// Sockets of one namespace.
#[derive(Debug)]
pub(super) struct Sockets {
    udp: std::net::UdpSocket,
    tcp: std::net::TcpListener,
}

impl Sockets {
    /// Those of this thread's namespace, IPv4 and IPv6 alike where the kernel has both.
    pub(super) fn bind() -> io::Result<Self> {
        let both: SocketAddr = (Ipv6Addr::UNSPECIFIED, PORT).into();
        let one: SocketAddr = (Ipv4Addr::UNSPECIFIED, PORT).into();
        let udp = std::net::UdpSocket::bind(both).or_else(|_| std::net::UdpSocket::bind(one))?;
        let tcp = std::net::TcpListener::bind(both).or_else(|_| std::net::TcpListener::bind(one))?;
        udp.set_nonblocking(true)?;
        tcp.set_nonblocking(true)?;
        Ok(Self { udp, tcp })
    }
}

/// What answers the guest of one slot.
#[derive(Debug, Clone)]
struct Desk {
    gate: Arc<Gate>,
    upstream: Arc<Upstream>,
    at_once: Arc<Semaphore>,
}

/// Serves until it is dropped or the sockets break.
pub(super) async fn serve(sockets: Sockets, gate: Arc<Gate>, upstream: Arc<Upstream>) {
    let desk = Desk { gate, upstream, at_once: Arc::new(Semaphore::new(MAX_AT_ONCE)) };
    let (udp, tcp) = match (UdpSocket::from_std(sockets.udp), TcpListener::from_std(sockets.tcp)) {
        (Ok(udp), Ok(tcp)) => (udp, tcp),
        (Err(e), _) | (_, Err(e)) => return debug!(error = %e, "a resolver's sockets are of no use"),
    };
    tokio::join!(desk.serve_datagrams(Arc::new(udp)), desk.serve_connections(tcp));
}

impl Desk {
    async fn serve_datagrams(&self, socket: Arc<UdpSocket>) {
        let mut asked = JoinSet::new();
        let mut room = vec![0; MAX_QUESTION];
        loop {
            while asked.try_join_next().is_some() {}
            // An error is that of an answer before, to somebody who is gone.
            let Ok((length, from)) = socket.recv_from(&mut room).await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let Ok(permit) = Arc::clone(&self.at_once).try_acquire_owned() else { continue };
            let question = room.get(..length).unwrap_or_default().to_vec();
            let (desk, socket) = (self.clone(), Arc::clone(&socket));
            asked.spawn(async move {
                if let Some(answer) = desk.answer(&question, Question::over_udp).await {
                    let _ = socket.send_to(&answer, from).await;
                }
                drop(permit);
            });
        }
    }

    async fn serve_connections(&self, listener: TcpListener) {
        let mut open = JoinSet::new();
        loop {
            while open.len() >= MAX_CONNECTIONS {
                open.join_next().await;
            }
            while open.try_join_next().is_some() {}
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let desk = self.clone();
            open.spawn(async move {
                // A connection that breaks has nobody who would want to know.
                let _ = desk.converse(stream).await;
            });
        }
    }

    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let reading = async {
                let length = usize::from(stream.read_u16().await?);
                if length > MAX_QUESTION {
                    return Err(io::Error::from(io::ErrorKind::InvalidData));
                }
                let mut question = vec![0; length];
                stream.read_exact(&mut question).await?;
                io::Result::Ok(question)
            };
            let question = tokio::time::timeout(SILENCE, reading).await??;
            let permit = self.at_once.acquire().await.map_err(io::Error::other)?;
            let answer = self.answer(&question, Question::over_tcp).await;
            drop(permit);
            let Some(answer) = answer else { return Ok(()) };
            let writing = async {
                stream.write_u16(u16::try_from(answer.len()).map_err(io::Error::other)?).await?;
                stream.write_all(&answer).await
            };
            tokio::time::timeout(SILENCE, writing).await??;
        }
    }

    async fn answer(&self, bytes: &[u8], read: fn(&[u8]) -> Option<Question>) -> Option<Vec<u8>> {
        answer(read(bytes)?, &self.gate, &self.upstream).await
    }
}
