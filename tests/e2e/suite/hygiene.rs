//! What is left when sandboxes have come and gone: nothing.

use crate::support::{
    Children, LIST, MONITORS, alone, at_soak, becomes, controller_pid, full_pool, host_sh, numpy, store_root,
};

/// What could be left behind, by name.
fn census(controller: &str) -> String {
    host_sh(&format!(
        "cd {root}
         echo monitors $({MONITORS})
         echo folders $({LIST} run | wc -l)
         echo unfinished $(ls staging | wc -l)
         echo mounts $(wc -l </proc/mounts)
         echo sockets $(wc -l </proc/net/unix)
         echo networks $(ls /run/netns | wc -l) $(grep -c fkd- /proc/net/dev)
         echo cgroups $(find /sys/fs/cgroup -type d | wc -l)
         echo descriptors $(ls /proc/{controller}/fd | wc -l)
         echo deleted files $(ls -l /proc/{controller}/fd | grep -c deleted)",
        root = store_root()
    ))
}

fn resident_kib(pid: &str) -> u64 {
    host_sh(&format!("awk '/^VmRSS/ {{print $2}}' /proc/{pid}/status")).parse().unwrap()
}

#[test]
fn coming_and_going_leaves_nothing() {
    let _world = alone();
    let rounds = at_soak("rounds of forking and killing", 200, 5);
    let round = || {
        let children = Children::fork(numpy(), 2);
        assert_eq!(children[0].value("1 + 1"), 2);
    };
    // The first opens what stays open, such as the snapshot's files.
    round();
    full_pool();
    let controller = controller_pid();
    let (before, resident) = (census(&controller), resident_kib(&controller));
    for _ in 0..rounds {
        round();
    }
    assert_eq!(controller_pid(), controller);
    becomes(&before, || census(&controller));
    let grown = resident_kib(&controller).saturating_sub(resident);
    assert!(grown < 16 << 10, "the controller grew by {grown} KiB");
}
