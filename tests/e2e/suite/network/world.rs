//! The outside of these tests: a namespace of the host that carries the addresses in question, and leads nowhere else.

use crate::support::{host_sh, store_root};

/// Public addresses there, as far as a sandbox can tell.
pub(super) const PUBLIC: [&str; 3] = ["203.0.113.10", "203.0.113.11", "2001:db8:99::10"];
/// Addresses there that no sandbox reaches unless they are named: private ones, metadata services, link-local ones.
pub(super) const SPECIAL: [&str; 7] = [
    "10.9.9.9",
    "172.16.9.9",
    "192.168.99.9",
    "100.100.100.200",
    "169.254.169.254",
    "fd00:ec2::254",
    "64:ff9b::a9fe:a9fe",
];
/// The host's end of the way there: the host itself.
pub(super) const HOST: &str = "203.0.113.1";

const SERVER: &str = include_str!("world.py");

/// Gone when dropped.
pub(super) struct World {
    resolv_conf: String,
}

impl World {
    pub(super) fn new() -> Self {
        let root = store_root();
        let resolv_conf = host_sh("cat /etc/resolv.conf");
        let world = Self { resolv_conf };
        let own: String =
            PUBLIC.iter().chain(&SPECIAL).map(|a| format!("ip -n world addr add {a} dev lo\n")).collect();
        // Never by the host's own way out.
        let routes: String = PUBLIC[2..]
            .iter()
            .chain(&SPECIAL)
            .map(|a| format!("ip route add {a} via {}\n", gateway(a)))
            .collect();
        host_sh(&format!(
            "set -e
             ip netns add world
             ip link add wup type veth peer name w0 netns world
             ip addr add {HOST}/24 dev wup; ip addr add 2001:db8:1::1/64 dev wup nodad; ip link set wup up
             ip -n world addr add 203.0.113.2/24 dev w0; ip -n world addr add 2001:db8:1::2/64 dev w0 nodad
             ip -n world link set lo up; ip -n world link set w0 up
             {own}{routes}
             cat >{root}/world.py <<'END'\n{SERVER}\nEND
             ip netns exec world setsid python3 {root}/world.py >/dev/null 2>&1 </dev/null &
             setsid python3 -m http.server 8088 --directory /proc/net >/dev/null 2>&1 </dev/null & echo $! >{root}/world.pid
             echo nameserver 203.0.113.2 >/etc/resolv.conf
             until ip netns exec world ss -lnt | grep -q :443; do sleep 0.1; done
             until ss -lnt | grep -q :8088; do sleep 0.1; done"
        ));
        world
    }
}

fn gateway(address: &str) -> &'static str {
    if address.contains(':') { "2001:db8:1::2" } else { "203.0.113.2" }
}

impl Drop for World {
    fn drop(&mut self) {
        let (root, resolv_conf) = (store_root(), &self.resolv_conf);
        let _ = std::panic::catch_unwind(|| {
            host_sh(&format!(
                "ip netns pids world | xargs -r kill -KILL
                 kill -KILL $(cat {root}/world.pid) || true
                 ip netns del world || true
                 ip link del wup 2>/dev/null || true
                 rm -f {root}/world.py {root}/world.pid
                 echo '{resolv_conf}' >/etc/resolv.conf"
            ))
        });
    }
}
