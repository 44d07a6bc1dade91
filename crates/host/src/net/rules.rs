//! The nftables rules: those of a namespace, which are the same in all of them, and those of the host.
//!
//! A guest's root reaches neither. What a policy lets out lies in sets (`netfilter.rs`), so that these rules are loaded
//! once, when a slot is prepared.

use std::fmt::Display;
use std::io::Write;
use std::process::{Command, Stdio};

use forkd_protocol::guest::network::{GATEWAY4, GATEWAY6, GUEST4, GUEST6};

use super::NetError;
use super::addresses::{OUT, OUTER4, OUTER6, TAP, VETH_PREFIX};
use super::special::{special4, special6};

/// The table of a namespace.
pub(super) const TABLE: &str = "forkd";
/// Sets by purpose; their names end in 4 or 6.
pub(super) const EXPLICIT: &str = "explicit";
pub(super) const NAMED: &str = "named";
pub(super) const ANSWERED: &str = "answered";
pub(super) const ANSWERED_SERVICES: &str = "answered_services";

/// Connections that one sandbox may have open: the tables of the host are shared.
const MOST_CONNECTIONS: u32 = 8192;

fn list<T: Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn sets(family: u8, special: &str) -> String {
    let address = if family == 4 { "ipv4_addr" } else { "ipv6_addr" };
    let service = format!("type {address} . inet_proto . inet_service;");
    format!(
        "  set special{family} {{ type {address}; flags interval; elements = {{ {special} }} }}
  set {EXPLICIT}{family} {{ {service} flags interval; }}
  set {NAMED}{family} {{ {service} flags interval; }}
  set {ANSWERED}{family} {{ type {address}; flags timeout; size 65535; }}
  set {ANSWERED_SERVICES}{family} {{ {service} flags timeout; size 65535; }}
"
    )
}

/// In order: what a policy names among special addresses, no special address, what else it names or names stand for.
fn verdicts(ip: &str, family: u8) -> String {
    let service = format!("{ip} daddr . meta l4proto . th dport");
    format!(
        "    {service} @{EXPLICIT}{family} accept
    {ip} daddr @special{family} reject with icmpx admin-prohibited
    {service} @{NAMED}{family} accept
    {ip} daddr @{ANSWERED}{family} accept
    {service} @{ANSWERED_SERVICES}{family} accept
"
    )
}

/// Rules of every namespace. Nothing passes until its sets are filled.
pub(super) fn of_namespace() -> String {
    let (sets4, sets6) = (sets(4, &list(&special4())), sets(6, &list(&special6())));
    let (verdicts4, verdicts6) = (verdicts("ip", 4), verdicts("ip6", 6));
    format!(
        "table inet {TABLE} {{
{sets4}{sets6}
  chain spoofed {{
    type filter hook prerouting priority raw; policy accept;
    iifname != \"{TAP}\" accept
    ip saddr {GUEST4} accept
    ip6 saddr {GUEST6} accept
    ip6 saddr {{ ::, fe80::/10 }} icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, mld2-listener-report }} accept
    drop
  }}
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname \"{OUT}\" oifname \"{TAP}\" ct state established,related accept
    iifname \"{TAP}\" oifname \"{OUT}\" jump leaving
  }}
  chain leaving {{
    ct state established,related accept
    ct state invalid drop
    ct count over {MOST_CONNECTIONS} reject with icmpx admin-prohibited
{verdicts4}{verdicts6}    reject with icmpx admin-prohibited
  }}
  chain input {{
    type filter hook input priority filter; policy drop;
    iifname \"{TAP}\" ip daddr {GATEWAY4} meta l4proto {{ tcp, udp }} th dport 53 accept
    iifname \"{TAP}\" ip6 daddr {GATEWAY6} meta l4proto {{ tcp, udp }} th dport 53 accept
    iifname \"{TAP}\" ip daddr {GATEWAY4} icmp type echo-request accept
    iifname \"{TAP}\" ip6 daddr {GATEWAY6} icmpv6 type echo-request accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
    ct state established,related accept
    iifname \"{TAP}\" reject with icmpx admin-prohibited
  }}
  chain output {{
    type filter hook output priority filter; policy drop;
    oifname \"{TAP}\" accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
    ct state related accept
  }}
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname \"{OUT}\" masquerade
  }}
}}
"
    )
}

/// The host's rules for all of its sandboxes, in a table of the controller's own. Loading them again changes nothing.
pub(super) fn of_host(table: &str) -> String {
    let veths = format!("\"{VETH_PREFIX}*\"");
    format!(
        "table inet {table} {{}}
delete table inet {table}
table inet {table} {{
  chain input {{
    type filter hook input priority filter - 10; policy accept;
    iifname {veths} drop
  }}
  chain forward {{
    type filter hook forward priority filter - 10; policy accept;
    iifname {veths} oifname {veths} drop
    iifname {veths} ip saddr != {OUTER4} drop
    iifname {veths} ip6 saddr != {OUTER6} drop
    oifname {veths} ct state != {{ established, related }} drop
  }}
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname != {veths} ip saddr {OUTER4} masquerade
    oifname != {veths} ip6 saddr {OUTER6} masquerade
  }}
}}
"
    )
}

/// Takes the host's rules away; where there are none, that is fine.
pub(super) fn without(table: &str) -> String {
    format!("table inet {table} {{}}\ndelete table inet {table}\n")
}

/// Has rules loaded into this thread's namespace: all of them, or none.
pub(super) fn load(rules: &str) -> Result<(), NetError> {
    let unfit = |e: std::io::Error| NetError::Unfit(format!("nft cannot be run ({e}); install nftables"));
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(unfit)?;
    // What it does not read, it does not like, and says so.
    let written = nft.stdin.take().map(|mut input| input.write_all(rules.as_bytes()));
    let output = nft.wait_with_output().map_err(NetError::kernel("waiting for nft"))?;
    if output.status.success() && matches!(written, Some(Ok(()))) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(NetError::Rules(said.lines().next().unwrap_or("it said nothing").to_owned()))
}

/// Whether there is an `nft`.
pub(super) fn is_there() -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .any(|folder| std::path::Path::new(folder).join("nft").exists())
}
