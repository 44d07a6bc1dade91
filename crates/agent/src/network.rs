//! The guest's network: addresses and routes of its device, and who answers names.
//!
//! All guests have the same, so it is set up once, when a parent boots; a restored guest finds it as it should be.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use forkd_netlink::Links;
use forkd_protocol::guest::network::GuestNetwork;

/// The device, which is the only one.
const DEVICE: &str = "eth0";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Sets the device up. False where the machine has none.
pub(crate) fn set_up(network: &GuestNetwork) -> io::Result<bool> {
    if !Path::new("/sys/class/net").join(DEVICE).exists() {
        return Ok(false);
    }
    let mut links = Links::open()?;
    let index = links.index(DEVICE)?;
    // Nobody advertises anything here, and nobody else has these addresses.
    for knob in ["accept_ra", "accept_dad"] {
        // Missing in a kernel without IPv6.
        let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{DEVICE}/{knob}"), "0");
    }
    links.up(index, None)?;
    let has_ipv6 = Path::new("/proc/sys/net/ipv6").exists();
    let usable = |address: &IpAddr| address.is_ipv4() || has_ipv6;
    for (address, prefix) in network.addresses.iter().filter(|(address, _)| usable(address)) {
        links.add_address(index, *address, *prefix)?;
    }
    for gateway in network.gateways.iter().filter(|gateway| usable(gateway)) {
        links.add_default_route(index, *gateway)?;
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
