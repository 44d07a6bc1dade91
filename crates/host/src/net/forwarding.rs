//! What the host itself needs: devices, programs, rights, and that it forwards.

use std::fs;
use std::io;
use std::path::Path;

use super::namespace::sysctl;
use super::{NetError, rules, slot, tap};

/// Whether sandboxes can be given a network here.
pub(super) fn check() -> Result<(), NetError> {
    let unfit = |what: &str| Err(NetError::Unfit(what.to_owned()));
    if !rustix::process::geteuid().is_root() {
        return unfit("the controller is not root");
    }
    if let Err(e) = tap::is_there() {
        return unfit(&format!("/dev/net/tun cannot be opened ({e}); load the module tun"));
    }
    if !rules::is_there() {
        return unfit("there is no nft; install nftables");
    }
    Ok(())
}

/// Forwards between interfaces, as every host of containers does. Interfaces that learn their addresses from routers go
/// on doing so, which they would not of themselves.
pub(super) fn allow() -> Result<(), NetError> {
    let knob =
        |e: io::Error| NetError::Unfit(format!("it cannot be made to forward ({e}); is /proc/sys writable?"));
    sysctl("ipv4/ip_forward", "1").map_err(knob)?;
    if !slot::has_ipv6() {
        return Ok(());
    }
    for interface in fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
        keep_learning(&interface.path()).map_err(knob)?;
    }
    sysctl("ipv6/conf/all/forwarding", "1").map_err(knob)
}

fn keep_learning(interface: &Path) -> io::Result<()> {
    let accept = interface.join("accept_ra");
    match fs::read_to_string(&accept) {
        // Only while nothing is forwarded; 2 is always.
        Ok(value) if value.trim() == "1" => fs::write(accept, "2"),
        _ => Ok(()),
    }
}
