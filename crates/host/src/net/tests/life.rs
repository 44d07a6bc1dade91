//! Slots: taken, given back, found again, and nothing left.

use std::process::Command;

use forkd_protocol::rest::NetStats;
use serde_json::json;

use super::policy;
use super::world::{Guest, in_a_world};
use crate::net::{NetError, namespace};

/// What there is on the test's host: namespaces, interfaces, tables.
fn inventory() -> (Vec<String>, Vec<String>, String) {
    let mut namespaces = namespace::list("forkd-");
    namespaces.sort();
    let links = std::fs::read_dir("/proc/thread-self/net/dev_snmp6").unwrap();
    let mut links: Vec<_> = links.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    links.sort();
    let tables =
        Command::new("nft").args(["list", "tables"]).env("PATH", "/usr/sbin:/sbin").output().unwrap();
    (namespaces, links, String::from_utf8(tables.stdout).unwrap())
}

#[test]
fn slots_wait_are_used_again_and_leave_nothing() {
    in_a_world(|world| {
        let before = inventory();
        let network = world.network(8, 1);
        assert!(!network.lacks_waiting(), "nobody has asked for one yet");
        assert_eq!(inventory(), before);
        network.want();
        assert!(network.lacks_waiting());
        network.fill_one().unwrap();
        assert!(!network.lacks_waiting());
        let mut lease = network.lease(&policy(json!("allow"))).unwrap();
        let name = lease.name().to_owned();
        let guest = Guest::new("guest", &mut lease);
        assert!(guest.reaches("203.0.113.10", 80));
        drop(guest);
        lease.give_back();
        assert_eq!(inventory().0, [name.as_str()]);
        let mut again = network.lease(&policy(json!(["203.0.113.11"]))).unwrap();
        assert_eq!(again.name(), name);
        let guest = Guest::new("guest", &mut again);
        assert!(!guest.reaches("203.0.113.10", 80));
        assert!(guest.reaches("203.0.113.11", 80));
        drop(guest);
        let second = network.lease(&policy(json!("deny"))).unwrap();
        second.give_back();
        again.give_back();
        network.close();
        assert_eq!(inventory(), before);
    });
}

#[test]
fn more_than_there_can_be_is_refused_and_nothing_is_left() {
    in_a_world(|world| {
        let network = world.network(2, 0);
        let leases: Vec<_> = (0..2).map(|_| network.lease(&policy(json!("deny"))).unwrap()).collect();
        let full = inventory();
        let refused = network.lease(&policy(json!("allow"))).unwrap_err();
        assert!(matches!(refused, NetError::Exhausted(2)), "{refused}");
        assert_eq!(refused.class(), forkd_protocol::error::ErrorClass::Exhausted);
        assert_eq!(inventory(), full);
        leases.into_iter().for_each(crate::net::Lease::give_back);
        assert!(network.lease(&policy(json!("allow"))).is_ok());
    });
}

#[test]
fn two_controllers_do_not_take_the_same_numbers() {
    in_a_world(|world| {
        let (one, other) = (world.network(8, 0), world.network_of("other"));
        let leases = [&one, &other, &one].map(|network| network.lease(&policy(json!("deny"))).unwrap());
        let mut numbers: Vec<_> =
            leases.iter().map(|l| l.name().rsplit('-').next().unwrap().to_owned()).collect();
        numbers.sort();
        numbers.dedup();
        assert_eq!(numbers.len(), 3);
    });
}

#[test]
fn a_controller_that_starts_again_finds_its_slots_and_removes_the_others() {
    in_a_world(|world| {
        let first = world.network(8, 2);
        first.want();
        first.fill_one().unwrap();
        world.name("example.com", &["203.0.113.11"], 60);
        let stranger = world.network_of("other").lease(&policy(json!("deny"))).unwrap();
        let kept_policy = policy(json!(["203.0.113.10", "example.com"]));
        let mut kept = first.lease(&kept_policy).unwrap();
        let lost = first.lease(&policy(json!("allow"))).unwrap();
        let guest = Guest::new("guest", &mut kept);
        let name = kept.name().to_owned();
        // As if the controller were killed: nothing is given back.
        let mut lost = lost;
        lost.keep();
        kept.keep();
        drop((kept, lost, first));
        let second = world.network(8, 2);
        second.remove_all_but(std::slice::from_ref(&name)).unwrap();
        let mut left = namespace::list("forkd-");
        left.sort();
        assert_eq!(left, [stranger.name(), name.as_str()]);
        assert!(guest.reaches("203.0.113.10", 80), "rules hold while no controller runs");
        let found = second.find(&name, &kept_policy, NetStats::default()).unwrap();
        assert!(guest.reaches("203.0.113.10", 80));
        assert!(!guest.reaches("203.0.113.11", 80));
        guest.resolves("example.com", hickory_proto::rr::RecordType::A).unwrap();
        assert!(guest.reaches("203.0.113.11", 80));
        found.policing().set(&policy(json!("deny"))).unwrap();
        assert!(!guest.reaches("203.0.113.10", 80));
        drop(guest);
        found.give_back();
        second.close();
        assert_eq!(namespace::list("forkd-t-"), Vec::<String>::new());
        assert!(matches!(
            second.find("forkd-t-77", &kept_policy, NetStats::default()),
            Err(NetError::Gone(_))
        ));
    });
}
