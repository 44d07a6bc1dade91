//! A host of the test's own, and an outside that carries every address in question. No packet leaves the computer: the
//! host's namespace has no way out but the one to the outside made here.
//!
//! ```text
//!   guest ── pump ── tap0 (slot) ── fkd-N ── "host" ── up0 ═══ w0 ── "world": all addresses, servers
//! ```

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forkd_protocol::guest::network::GuestNetwork;
use forkd_testkit::guard;
use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{RData, Record, RecordType};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tokio::runtime::Runtime;

use super::super::addresses::GUEST_MAC;
use super::super::namespace::{number, own_namespace};
use super::super::{Lease, NetError, Network, NetworkPlan, namespace, tap};
use forkd_netlink::{Links, Veth};

/// Ports on which everybody in the outside and the host itself listen.
const PORTS: [u16; 4] = [80, 443, 853, 8443];
const PATIENCE: Duration = Duration::from_secs(3);
/// The host, towards the outside.
pub(super) const HOST4: &str = "192.0.2.1";
pub(super) const HOST6: &str = "2001:db8:1::1";
/// Addresses of the outside.
pub(super) const PUBLIC: [&str; 4] = ["203.0.113.10", "203.0.113.11", "2001:db8::10", "2001:db8::11"];
pub(super) const SPECIAL: [&str; 12] = [
    "10.9.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.5.5",
    "192.0.0.192",
    "192.168.7.7",
    "fd00:ec2::254",
    "fd20:ce::254",
    "64:ff9b::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "64:ff9b::a09:1",
];
const NAME_SERVER: &str = "192.0.2.2";

/// Names that the outside's name server knows; a test adds its own.
type Zone = Arc<Mutex<HashMap<String, (Vec<IpAddr>, u32)>>>;

pub(super) struct World {
    pub(super) runtime: Runtime,
    pub(super) zone: Zone,
    folder: tempfile::TempDir,
}

/// What became of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Met {
    /// This address answered.
    Answer(String),
    /// Somebody said no.
    Refused,
    /// Nobody said anything.
    Silence,
}

/// Runs a test on a host of its own, where that can be made.
pub(super) fn in_a_world(test: impl FnOnce(&World) + Send) {
    let able = if rustix::process::geteuid().is_root() {
        tap::is_there().map_err(|e| e.to_string())
    } else {
        Err("not root".to_owned())
    };
    if !guard::met("tun", able) {
        return;
    }
    // A thread's namespaces are its own, and those of threads that it starts.
    thread::scope(|scope| {
        let ran = scope.spawn(|| {
            let world = World::make();
            test(&world);
        });
        if let Err(panic) = ran.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

impl World {
    fn make() -> Self {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("resolv.conf"), format!("nameserver {NAME_SERVER}\n")).unwrap();
        let zone = Zone::default();
        let mut host = Links::open().unwrap();
        up(&mut host, "lo", &[]);
        namespace::create("world", || {
            connect_world(&mut host);
            serve();
            answer_names(Arc::clone(&zone));
            Ok(())
        })
        .unwrap();
        let index = host.index("up0").unwrap();
        up(&mut host, "up0", &[(HOST4, 24), (HOST6, 64)]);
        for gateway in [NAME_SERVER, "2001:db8:1::2"] {
            host.add_default_route(index, gateway.parse().unwrap()).unwrap();
        }
        serve();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        Self { runtime, zone, folder }
    }

    pub(super) fn network(&self, capacity: u32, waiting: usize) -> Network {
        self.network_with("t", capacity, waiting)
    }

    /// That of another controller on this host.
    pub(super) fn network_of(&self, tag: &str) -> Network {
        self.network_with(tag, 8, 0)
    }

    fn network_with(&self, tag: &str, capacity: u32, waiting: usize) -> Network {
        let resolv_conf: PathBuf = self.folder.path().join("resolv.conf");
        let plan = NetworkPlan { tag: tag.to_owned(), capacity, waiting, resolv_conf };
        Network::new(plan, self.runtime.handle().clone())
    }

    pub(super) fn name(&self, name: &str, addresses: &[&str], ttl: u32) {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        self.zone.lock().unwrap().insert(format!("{name}."), (addresses, ttl));
    }
}

fn up(links: &mut Links, name: &str, addresses: &[(&str, u8)]) {
    let index = links.index(name).unwrap();
    links.up(index, None).unwrap();
    for (address, prefix) in addresses {
        links.add_address(index, address.parse().unwrap(), *prefix).unwrap();
    }
}

/// Inside the world: its end of the veth, and all of its addresses.
fn connect_world(host: &mut Links) {
    let own = own_namespace().unwrap();
    let veth = Veth {
        name: "up0",
        mac: [2, 0, 0, 0, 0, 1],
        peer: "w0",
        peer_mac: [2, 0, 0, 0, 0, 2],
        peer_namespace: number(own.as_fd()),
    };
    host.add_veth(&veth).unwrap();
    let mut links = Links::open().unwrap();
    up(&mut links, "w0", &[(NAME_SERVER, 24), ("2001:db8:1::2", 64)]);
    let all = PUBLIC.iter().chain(&SPECIAL);
    let all: Vec<_> = all.map(|a| (*a, if a.contains(':') { 128 } else { 32 })).collect();
    up(&mut links, "lo", &all);
    // The sandboxes' own addresses must not be seen here, so there is no way back to them.
}

/// Listens on every address of this thread's namespace, and tells whoever connects which one that was.
fn serve() {
    for port in PORTS {
        let listener = TcpListener::bind(format!("[::]:{port}")).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || greet(stream));
            }
        });
    }
}

/// Says the address, then whatever it is told, until nothing more comes.
fn greet(mut stream: TcpStream) {
    let own = stream.local_addr().unwrap().ip().to_canonical();
    let _ = stream.write_all(format!("{own}\n").as_bytes());
    let mut room = vec![0; 1 << 16];
    while let Ok(length) = stream.read(&mut room) {
        if length == 0 || (room[0] == b'?' && stream.write_all(b"!").is_err()) {
            return;
        }
    }
}

fn answer_names(zone: Zone) {
    let socket = UdpSocket::bind("[::]:53").unwrap();
    thread::spawn(move || {
        let mut room = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut room) {
            let question = Message::from_vec(&room[..length]).unwrap();
            let reply = authority(&question, &zone.lock().unwrap());
            let _ = socket.send_to(&reply.to_vec().unwrap(), from);
        }
    });
}

fn authority(question: &Message, zone: &HashMap<String, (Vec<IpAddr>, u32)>) -> Message {
    let query = &question.queries[0];
    let mut reply = Message::new(question.metadata.id, MessageType::Response, OpCode::Query);
    reply.add_queries([query.clone()]);
    let Some((addresses, ttl)) = zone.get(&query.name().to_ascii().to_ascii_lowercase()) else {
        reply.metadata.response_code = ResponseCode::NXDomain;
        return reply;
    };
    for address in addresses {
        let data = match (address, query.query_type()) {
            (IpAddr::V4(v4), RecordType::A) => RData::A((*v4).into()),
            (IpAddr::V6(v6), RecordType::AAAA) => RData::AAAA((*v6).into()),
            _ => continue,
        };
        reply.add_answer(Record::from_rdata(query.name().clone(), *ttl, data));
    }
    reply
}

/// A namespace in the place of a guest, with root's rights in it, at the other end of a slot's tap.
pub(super) struct Guest {
    pub(super) name: String,
    /// Ends the pump.
    _stop: std::sync::mpsc::Sender<()>,
    pump: Option<thread::JoinHandle<()>>,
}

impl Guest {
    pub(super) fn new(name: &str, lease: &mut Lease) -> Self {
        let theirs = lease.take_tap().expect("a tap");
        let ours = namespace::create(name, || {
            let tap = tap::open("eth0").unwrap();
            set_up();
            Ok(tap)
        });
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let pump = thread::spawn(move || pump(&theirs, &ours.unwrap(), &stopped));
        Self { name: name.to_owned(), _stop: stop, pump: Some(pump) }
    }

    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        namespace::within(&self.name, || Ok::<T, NetError>(work())).unwrap()
    }

    /// Whom it meets at an address and port.
    pub(super) fn meets(&self, address: &str, port: u16) -> Met {
        self.within(|| meet((address.parse::<IpAddr>().unwrap(), port).into()).0)
    }

    /// Whether a connection from the outside's point of view is made.
    pub(super) fn reaches(&self, address: &str, port: u16) -> bool {
        matches!(self.meets(address, port), Met::Answer(_))
    }

    /// Asks the gateway for a name.
    pub(super) fn resolves(&self, name: &str, kind: RecordType) -> Result<Vec<IpAddr>, ResponseCode> {
        self.within(|| ask("192.0.0.1:53", name, kind).expect("the gateway answers"))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let (sender, _) = std::sync::mpsc::channel();
        self._stop = sender;
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
        let _ = namespace::remove(&self.name);
    }
}

/// What the agent does in a guest.
fn set_up() {
    let network = GuestNetwork::default();
    let mut links = Links::open().unwrap();
    up(&mut links, "lo", &[]);
    let index = links.index("eth0").unwrap();
    links.up(index, Some(GUEST_MAC)).unwrap();
    for (address, prefix) in network.addresses {
        links.add_address(index, address, prefix).unwrap();
    }
    for gateway in network.gateways {
        links.add_default_route(index, gateway).unwrap();
    }
}

fn pump(one: &fs::File, other: &fs::File, stopped: &std::sync::mpsc::Receiver<()>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut room = vec![0; 70_000];
    while !matches!(stopped.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected)) {
        let mut waiting = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
        for (mut from, mut to) in [(one, other), (other, one)] {
            while let Ok(length) = from.read(&mut room) {
                let _ = to.write(&room[..length]);
            }
        }
    }
}

/// Connects from this thread's namespace.
pub(super) fn meet(to: SocketAddr) -> (Met, Option<TcpStream>) {
    match TcpStream::connect_timeout(&to, PATIENCE) {
        Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => (Met::Silence, None),
        Err(_) => (Met::Refused, None),
        Ok(mut stream) => {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut said = Vec::new();
            let mut byte = [0];
            while stream.read(&mut byte).is_ok_and(|n| n == 1) && byte[0] != b'\n' {
                said.push(byte[0]);
            }
            (Met::Answer(String::from_utf8(said).unwrap()), Some(stream))
        }
    }
}

/// Asks a name server over UDP.
pub(super) fn ask(server: &str, name: &str, kind: RecordType) -> Option<Result<Vec<IpAddr>, ResponseCode>> {
    let mut question = Message::query();
    question.metadata.recursion_desired = true;
    let name = hickory_proto::rr::Name::from_ascii(format!("{name}.")).unwrap();
    question.add_query(hickory_proto::op::Query::query(name, kind));
    let server: SocketAddr = server.parse().unwrap();
    let socket = UdpSocket::bind(if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.connect(server).unwrap();
    socket.send(&question.to_vec().unwrap()).ok()?;
    let mut room = [0; 4096];
    let length = socket.recv(&mut room).ok()?;
    let reply = Message::from_vec(&room[..length]).unwrap();
    assert_eq!(reply.metadata.id, question.metadata.id);
    if reply.metadata.response_code != ResponseCode::NoError {
        return Some(Err(reply.metadata.response_code));
    }
    let addresses = reply.answers.iter().filter_map(|record| record.data.ip_addr());
    Some(Ok(addresses.collect()))
}
