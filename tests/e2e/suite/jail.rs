//! What keeps a sandbox apart from its host.

use std::collections::BTreeSet;

use forkd_protocol::rest::JailReport;

use crate::support::{Children, bare, eventually, forkd, host_sh, together};

#[test]
fn every_monitor_is_jailed_as_someone_else_and_its_filters_kill_is_told() {
    let _world = together();
    let children = Children::fork(bare(), 2);
    let mut users = BTreeSet::new();
    for child in children.iter() {
        let report: JailReport = forkd(&["--json", "doctor", "--jail", &child.id]).ok().parsed();
        assert!(report.ok && Some(report.pid) == child.info.pid, "{report:?}");
        users.extend(report.checks.into_iter().find(|check| check.name == "user").map(|user| user.found));
    }
    assert_eq!(users.len(), children.len(), "{users:?}");
    // What the kernel does for a call that the filter does not allow.
    host_sh(&format!("kill -SYS {}", children[0].info.pid.unwrap()));
    let ended = eventually("it is told why it ended", || children[0].seen().and_then(|info| info.ended));
    assert!(ended.starts_with("killed: seccomp"), "{ended}");
    forkd(&["ping", &children[1].id]).ok();
}
