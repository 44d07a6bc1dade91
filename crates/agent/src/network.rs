//! The guest's network: addresses and routes of its device, and who answers names.
//!
//! All guests have the same, so it is set up once, when a parent boots; a restored guest finds it as it should be.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use forkd_protocol::guest::network::GuestNetwork;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// The device, which is the only one.
const DEVICE: &str = "eth0";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const ANSWER_ROOM: usize = 4096;

/// Sets the device up. False where the machine has none.
pub(crate) fn set_up(network: &GuestNetwork) -> io::Result<bool> {
    let Ok(index) = fs::read_to_string(format!("/sys/class/net/{DEVICE}/ifindex")) else { return Ok(false) };
    let index = index.trim().parse().map_err(io::Error::other)?;
    // Nobody advertises anything here, and nobody else has these addresses.
    for knob in ["accept_ra", "accept_dad"] {
        // Missing in a kernel without IPv6.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/{knob}"), "0");
    }
    let mut kernel = Kernel::open()?;
    kernel.ask(RouteNetlinkMessage::SetLink(up(index)))?;
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    let usable = |address: &IpAddr| address.is_ipv4() || has_ipv6;
    for (address, prefix) in network.addresses.iter().filter(|(address, _)| usable(address)) {
        kernel.ask(RouteNetlinkMessage::NewAddress(own_address(index, *address, *prefix)))?;
    }
    for gateway in network.gateways.iter().filter(|gateway| usable(gateway)) {
        kernel.ask(RouteNetlinkMessage::NewRoute(default_route(index, *gateway)))?;
    }
    Ok(true)
}

/// Has every C library ask these servers. An image may have a link there that leads to what only its own init makes.
pub(crate) fn name_servers(network: &GuestNetwork) -> io::Result<()> {
    let path = Path::new(RESOLV_CONF);
    if path.is_symlink() {
        fs::remove_file(path)?;
    }
    crate::identity::write_if_changed(path, &resolv_conf(&network.nameservers))
}

fn resolv_conf(servers: &[IpAddr]) -> String {
    servers.iter().map(|server| format!("nameserver {server}\n")).collect()
}

/// The kernel, over rtnetlink. It answers while it is asked.
struct Kernel(Socket);

impl Kernel {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self(socket))
    }

    fn ask(&mut self, message: RouteNetlinkMessage) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.0.send(&bytes, 0)?;
        let mut room = Vec::with_capacity(ANSWER_ROOM);
        self.0.recv(&mut room, 0)?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&room).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::Error(e) => e.code.map_or(Ok(()), |_| Err(e.to_io())),
            _ => Ok(()),
        }
    }
}

fn up(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message.header.flags = LinkFlags::Up;
    message.header.change_mask = LinkFlags::Up;
    message
}

fn own_address(index: u32, address: IpAddr, prefix: u8) -> AddressMessage {
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
    message
}

fn default_route(index: u32, gateway: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(gateway);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes =
        vec![RouteAttribute::Gateway(RouteAddress::from(gateway)), RouteAttribute::Oif(index)];
    message
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_server() {
        let network = GuestNetwork::default();
        assert_eq!(resolv_conf(&network.nameservers), "nameserver 192.0.0.1\n");
        assert_eq!(resolv_conf(&[]), "");
    }
}
