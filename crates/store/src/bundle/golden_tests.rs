//! Bundles that were made once and are kept: what is written today has to be read by every later forkd, or refused
//! with what to do. `cargo run -p forkd-store --example bundle -- golden DIR` makes them again; a change of format adds one instead.

use forkd_protocol::error::ErrorClass;
use forkd_protocol::guest::GUEST_VERSION;

use super::samples::{files, store, unpack};
use crate::testing::tag;

const FIRST: &[u8] = include_bytes!("../../tests/golden/first.forkd");
const OLDER_AGENT: &[u8] = include_bytes!("../../tests/golden/older-agent.forkd");
const FUTURE: &[u8] = include_bytes!("../../tests/golden/future.forkd");

#[test]
fn the_first_format_loads() {
    let (_there, to) = store();
    let (head, fates, _) = unpack(&to, FIRST, None).unwrap();
    assert_eq!((head.info.tag.as_str(), fates.len(), head.manifest.memory.len()), ("golden-b", 2, 2));
    assert_eq!(head.id, "a2ae6301bb04d92d6bd69dd2edae7c31b37e69d93a4eaae3f7745782915b88db");
    assert_eq!(to.verify(None, false).unwrap().damage, []);
    to.open_snapshot(&tag("golden-b")).unwrap();
}

#[test]
fn a_snapshot_with_an_older_agent_loads_and_the_fork_says_what_to_do() {
    let (_there, to) = store();
    let (head, _, _) = unpack(&to, OLDER_AGENT, None).unwrap();
    assert!(head.manifest.agent_protocol < GUEST_VERSION);
    to.verify_snapshot(&tag("golden-a")).unwrap();
}

#[test]
fn a_later_format_is_refused_with_what_to_do() {
    let (_there, to) = store();
    let before = files(&to);
    let refused = unpack(&to, FUTURE, None).unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Caller);
    assert!(refused.to_string().contains("use a newer forkd"), "{refused}");
    assert_eq!(files(&to), before);
}
