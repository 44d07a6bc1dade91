//! What gets out under which policy.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::policy;
use super::world::{Guest, HOST4, HOST6, Met, PUBLIC, SPECIAL, World, in_a_world, meet};
use crate::net::NetError;
use crate::net::addresses::Outer;
use forkd_netlink::Links;

/// Each other sandbox, the host in each of its addresses, itself by way of the host.
fn what_is_never_reached(other: u32) -> Vec<String> {
    let outer = Outer::of(other);
    let mut never: Vec<String> = [HOST4, HOST6].map(str::to_owned).into();
    never.extend([outer.host4.to_string(), outer.host6.to_string()]);
    never.extend([outer.inner4.to_string(), outer.inner6.to_string()]);
    never
}

fn other_forms() -> [&'static str; 4] {
    ["::ffff:169.254.169.254", "::ffff:10.9.0.1", "::169.254.169.254", "0.0.0.0"]
}

#[test]
fn the_outside_has_every_address_and_the_host_reaches_them() {
    in_a_world(|_| {
        for address in PUBLIC.iter().chain(&SPECIAL) {
            let (met, _) = meet((address.parse::<std::net::IpAddr>().unwrap(), 80).into());
            assert_eq!(met, Met::Answer((*address).to_owned()));
        }
    });
}

#[test]
fn allow_is_every_public_address_and_nothing_else() {
    in_a_world(|world| {
        let network = world.network(8, 0);
        let mut other = network.lease(&policy(json!("allow"))).unwrap();
        let _other_guest = Guest::new("other", &mut other);
        let mut lease = network.lease(&policy(json!("allow"))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        for address in PUBLIC {
            assert_eq!(guest.meets(address, 443), Met::Answer(address.to_owned()));
        }
        for address in SPECIAL {
            assert_eq!(guest.meets(address, 80), Met::Refused, "{address}");
        }
        for address in what_is_never_reached(0).into_iter().chain(other_forms().map(str::to_owned)) {
            assert!(!guest.reaches(&address, 80), "{address}");
        }
    });
}

#[test]
fn deny_is_nothing() {
    in_a_world(|world| {
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!("deny"))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        for address in PUBLIC.iter().chain(&SPECIAL) {
            assert_eq!(guest.meets(address, 80), Met::Refused, "{address}");
        }
    });
}

#[test]
fn a_list_is_exactly_what_it_names() {
    in_a_world(|world| {
        let network = world.network(8, 0);
        let list =
            json!(["203.0.113.10:443", "2001:db8::10", "10.0.0.0/8:80", "169.254.169.254", "192.0.2.0/24"]);
        let mut lease = network.lease(&policy(list)).unwrap();
        let guest = Guest::new("guest", &mut lease);
        for (address, port, open) in [
            ("203.0.113.10", 443, true),
            ("203.0.113.10", 80, false),
            ("203.0.113.11", 443, false),
            ("2001:db8::10", 80, true),
            ("2001:db8::10", 8443, true),
            ("2001:db8::11", 80, false),
            ("10.9.0.1", 80, true),
            ("10.9.0.1", 443, false),
            ("169.254.169.254", 80, true),
            ("64:ff9b::a9fe:a9fe", 80, false),
            ("192.168.7.7", 80, false),
            // Naming the host does not open it.
            (HOST4, 80, false),
        ] {
            assert_eq!(guest.reaches(address, port), open, "{address} {port}");
        }
        let never = network.lease(&policy(json!(["127.0.0.1"])));
        assert!(matches!(never, Err(NetError::NeverOpen(_))));
    });
}

#[test]
fn another_policy_holds_at_once_also_for_open_connections() {
    in_a_world(|world| {
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!("allow"))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        let connect = || guest.within(|| meet("203.0.113.10:80".parse().unwrap()).1.unwrap());
        let alive = |stream: &mut std::net::TcpStream| {
            stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            stream.write_all(b"?").is_ok() && stream.read(&mut [0]).is_ok_and(|n| n == 1)
        };
        let mut stream = connect();
        assert!(alive(&mut stream));
        lease.policing().set(&policy(json!(["203.0.113.10"]))).unwrap();
        assert!(alive(&mut stream), "what the new policy allows goes on");
        assert!(!guest.reaches("203.0.113.11", 80));
        lease.policing().set(&policy(json!("deny"))).unwrap();
        assert!(!alive(&mut stream));
        lease.policing().set(&policy(json!("allow"))).unwrap();
        assert!(alive(&mut connect()));
        let refused = lease.policing().set(&policy(json!(["198.18.0.0/24"])));
        assert!(refused.is_err());
        assert!(guest.reaches("203.0.113.11", 80), "what was refused changed nothing");
    });
}

/// Whatever root of the guest does: other addresses, another MAC, other routes.
#[test]
fn a_guests_root_changes_nothing() {
    in_a_world(|world| {
        let network = world.network(8, 0);
        let mut other = network.lease(&policy(json!("allow"))).unwrap();
        let _other_guest = Guest::new("other", &mut other);
        let mut lease = network.lease(&policy(json!(["203.0.113.10"]))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        let outer = Outer::of(0);
        guest.within(|| {
            let mut links = Links::open().unwrap();
            let eth0 = links.index("eth0").unwrap();
            for address in ["192.0.0.3", "203.0.113.66", &outer.inner4.to_string()] {
                // No network of its own with it: what is sent from there takes the usual way.
                links.add_address(eth0, address.parse().unwrap(), 32).unwrap();
            }
            for gateway in [outer.host4.to_string(), HOST4.to_owned()] {
                // Not a neighbour, so it is said to be one.
                links
                    .add_neighbour(eth0, gateway.parse().unwrap(), crate::net::addresses::GATEWAY_MAC)
                    .unwrap();
            }
        });
        let from = |source: &str| {
            let source: std::net::IpAddr = source.parse().unwrap();
            guest.within(|| connect_from(source, "203.0.113.10:80"))
        };
        assert!(from("192.0.0.2"));
        for source in ["192.0.0.3", "203.0.113.66", &outer.inner4.to_string()] {
            assert!(!from(source), "{source}");
        }
        for address in what_is_never_reached(0) {
            assert!(!guest.reaches(&address, 80), "{address}");
        }
        guest.within(|| {
            let mut links = Links::open().unwrap();
            let eth0 = links.index("eth0").unwrap();
            links.up(eth0, Some([2, 9, 9, 9, 9, 9])).unwrap();
        });
        assert!(!guest.reaches("203.0.113.11", 80) && !guest.reaches("10.9.0.1", 80));
    });
}

fn connect_from(source: std::net::IpAddr, to: &str) -> bool {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(Duration::from_secs(2))).unwrap();
    bind(&socket, &std::net::SocketAddr::new(source, 0)).unwrap();
    connect(&socket, &to.parse::<std::net::SocketAddr>().unwrap()).is_ok()
}

#[test]
fn bandwidth_is_limited_up_and_down() {
    in_a_world(|world: &World| {
        let network = world.network(8, 0);
        let limited = json!({"egress": "allow", "upload_kbit": 4096});
        let mut lease = network.lease(&policy(limited)).unwrap();
        let guest = Guest::new("guest", &mut lease);
        let send = || {
            guest.within(|| {
                let mut stream = meet("203.0.113.10:80".parse().unwrap()).1.unwrap();
                let started = Instant::now();
                stream.write_all(&vec![b'.'; 1 << 20]).unwrap();
                // Heard to the end, and answered.
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = stream.read(&mut [0]);
                started.elapsed()
            })
        };
        // One MiB, less what may pass at once, at half a MiB a second.
        let slow = send();
        assert!(slow > Duration::from_millis(1100), "{slow:?}");
        lease.policing().set(&policy(json!("allow"))).unwrap();
        let fast = send();
        assert!(fast < slow / 2, "{fast:?} {slow:?}");
    });
}
