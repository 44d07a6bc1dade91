//! Names: which resolve, and what they open.

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use serde_json::json;

use super::policy;
use super::world::{Guest, ask, in_a_world};

#[test]
fn with_allow_every_name_resolves_and_with_deny_none() {
    in_a_world(|world| {
        world.name("example.com", &["203.0.113.10", "2001:db8::10"], 60);
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!("allow"))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        assert_eq!(
            guest.resolves("example.com", RecordType::A).unwrap(),
            ["203.0.113.10".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_eq!(
            guest.resolves("example.com", RecordType::AAAA).unwrap(),
            ["2001:db8::10".parse::<std::net::IpAddr>().unwrap()]
        );
        assert_eq!(guest.resolves("nowhere.example", RecordType::A), Err(ResponseCode::NXDomain));
        lease.policing().set(&policy(json!("deny"))).unwrap();
        assert_eq!(guest.resolves("example.com", RecordType::A), Err(ResponseCode::Refused));
        lease.policing().set(&policy(json!(["203.0.113.0/24"]))).unwrap();
        assert_eq!(guest.resolves("example.com", RecordType::A), Err(ResponseCode::Refused));
    });
}

#[test]
fn listed_names_open_what_they_stand_for_and_no_more() {
    in_a_world(|world| {
        world.name("example.com", &["203.0.113.10", "2001:db8::10"], 60);
        world.name("notexample.com", &["203.0.113.11"], 60);
        world.name("www.example.org", &["203.0.113.11"], 60);
        world.name("example.org", &["203.0.113.11"], 60);
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!(["example.com", "*.example.org:443"]))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        // Known by its address, but not asked for by name.
        assert!(!guest.reaches("203.0.113.10", 80));
        assert_eq!(guest.resolves("example.com", RecordType::A).unwrap().len(), 1);
        assert!(guest.reaches("203.0.113.10", 80) && guest.reaches("203.0.113.10", 8443));
        assert!(!guest.reaches("2001:db8::10", 80), "only what was answered");
        assert_eq!(guest.resolves("EXAMPLE.com", RecordType::AAAA).unwrap().len(), 1);
        assert!(guest.reaches("2001:db8::10", 80));
        for refused in ["notexample.com", "example.org", "www.example.com", "other.net"] {
            assert_eq!(guest.resolves(refused, RecordType::A), Err(ResponseCode::Refused), "{refused}");
        }
        assert!(!guest.reaches("203.0.113.11", 443));
        assert_eq!(guest.resolves("www.example.org", RecordType::A).unwrap().len(), 1);
        assert!(guest.reaches("203.0.113.11", 443));
        assert!(!guest.reaches("203.0.113.11", 80), "only the port that goes with the name");
        // Neither other name servers nor DNS over TLS.
        assert!(guest.within(|| ask("192.0.2.2:53", "example.com", RecordType::A)).is_none());
        assert!(!guest.reaches("192.0.2.2", 853));
        lease.policing().set(&policy(json!(["*.example.org"]))).unwrap();
        assert!(!guest.reaches("203.0.113.10", 80), "what an earlier policy's names opened is closed");
    });
}

#[test]
fn an_answer_opens_its_address_as_long_as_it_is_valid() {
    in_a_world(|world| {
        world.name("short.example", &["203.0.113.10"], 2);
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!(["short.example"]))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        for _ in 0..2 {
            guest.resolves("short.example", RecordType::A).unwrap();
            assert!(guest.reaches("203.0.113.10", 80));
            // Asked again while it is open, it is open for as long again.
            guest.resolves("short.example", RecordType::A).unwrap();
            assert!(guest.reaches("203.0.113.10", 80));
            std::thread::sleep(Duration::from_millis(2500));
            assert!(!guest.reaches("203.0.113.10", 80));
        }
    });
}

#[test]
fn a_name_does_not_open_what_is_special() {
    in_a_world(|world| {
        let inside = ["169.254.169.254", "10.9.0.1", "203.0.113.10", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"];
        world.name("rebind.example", &inside, 60);
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!(["rebind.example"]))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        let told = guest.resolves("rebind.example", RecordType::A).unwrap();
        assert_eq!(told, ["203.0.113.10".parse::<std::net::IpAddr>().unwrap()]);
        assert!(guest.resolves("rebind.example", RecordType::AAAA).unwrap().is_empty());
        for address in inside {
            assert_eq!(guest.reaches(address, 80), address == "203.0.113.10", "{address}");
        }
    });
}

#[test]
fn nonsense_is_not_answered_and_floods_are_survived() {
    in_a_world(|world| {
        world.name("example.com", &["203.0.113.10"], 60);
        let network = world.network(8, 0);
        let mut lease = network.lease(&policy(json!("allow"))).unwrap();
        let guest = Guest::new("guest", &mut lease);
        guest.within(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("192.0.0.1:53").unwrap();
            for length in [0, 1, 11, 12, 13, 500, 5000] {
                let _ = socket.send(&vec![0xff; length]);
            }
            socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            assert!(socket.recv(&mut [0; 512]).is_err());
            let held: Vec<_> =
                (0..20).filter_map(|_| std::net::TcpStream::connect("192.0.0.1:53").ok()).collect();
            assert!(!held.is_empty());
        });
        assert_eq!(guest.resolves("example.com", RecordType::A).unwrap().len(), 1);
    });
}
