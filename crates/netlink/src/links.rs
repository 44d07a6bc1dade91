//! Interfaces, addresses, routes and neighbours of a network namespace (rtnetlink).

use std::io;
use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily as SocketFamily, SocketFlags, SocketType, socket_with};

use crate::Netlink;

/// Speaks to the namespace in which it was opened.
#[derive(Debug)]
pub struct Links {
    netlink: Netlink,
    /// To ask for the numbers of interfaces.
    probe: OwnedFd,
}

/// Both ends of a veth that is to be made.
#[derive(Debug)]
pub struct Veth<'a> {
    /// This end's name.
    pub name: &'a str,
    /// This end's hardware address.
    pub mac: [u8; 6],
    /// The other end's name.
    pub peer: &'a str,
    /// The other end's hardware address.
    pub peer_mac: [u8; 6],
    /// Where the peer is put: a descriptor of its namespace.
    pub peer_namespace: RawFd,
}

/// Every call is refused as the kernel refuses it; what is to be there already, and is, is no refusal.
impl Links {
    /// Of this thread's namespace.
    pub fn open() -> io::Result<Self> {
        let probe = socket_with(SocketFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(Self { netlink: Netlink::open(NETLINK_ROUTE)?, probe })
    }

    /// The number of an interface.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        Ok(name_to_index(&self.probe, name)?)
    }

    /// Refused where either name is taken.
    pub fn add_veth(&mut self, veth: &Veth<'_>) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(veth.peer.to_owned()),
            LinkAttribute::Address(veth.peer_mac.to_vec()),
            LinkAttribute::NetNsFd(veth.peer_namespace),
        ];
        let mut message = LinkMessage::default();
        message.attributes = vec![
            LinkAttribute::IfName(veth.name.to_owned()),
            LinkAttribute::Address(veth.mac.to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        self.ask(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes an interface; one that is not there is fine.
    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        let Ok(index) = self.index(name) else { return Ok(()) };
        let mut message = LinkMessage::default();
        message.header.index = index;
        match self.ask(RouteNetlinkMessage::DelLink(message), 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(()),
            done => done,
        }
    }

    /// Brings an interface up, with a hardware address where one is given.
    pub fn up(&mut self, index: u32, mac: Option<[u8; 6]>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
        self.ask(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Gives an interface an address, which is used at once.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix;
        message.header.index = index;
        message.header.scope = AddressScope::Universe;
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Sends all that nothing else takes through `gateway`.
    pub fn add_default_route(&mut self, index: u32, gateway: IpAddr) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes =
            vec![RouteAttribute::Gateway(RouteAddress::from(gateway)), RouteAttribute::Oif(index)];
        self.ask(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Fixes who has an address, so that nobody has to be asked and nobody can claim it.
    pub fn add_neighbour(&mut self, index: u32, address: IpAddr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = index;
        message.header.state = NeighbourState::Permanent;
        let destination = match address {
            IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
            IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
        };
        message.attributes = vec![
            NeighbourAttribute::Destination(destination),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.ask(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Asks for one change; `flags` beside those of every request.
    pub fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_ACK | flags;
        debug_assert!(matches!(message.payload, NetlinkPayload::InnerMessage(_)));
        self.netlink.send(vec![message])
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
