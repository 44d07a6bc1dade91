//! Many cycles of fork and kill end where they began. A program of its own: it counts its own descriptors,
//! threads and children.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::fs;

use support::*;

#[derive(Debug)]
struct Held {
    descriptors: usize,
    children: usize,
    files: usize,
}

impl Held {
    /// Fewer is no leak: what is being closed when it is counted is gone later.
    fn is_no_more_than(&self, other: &Self) -> bool {
        self.descriptors <= other.descriptors && self.children <= other.children && self.files <= other.files
    }
}

fn held(house: &House) -> Held {
    let me = std::process::id().to_string();
    let child = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1).map(|parent| parent == me))
            == Some(true)
    };
    Held {
        descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
        children: names("/proc".as_ref()).iter().filter(|name| child(name)).count(),
        files: walk(&house.root()),
    }
}

fn walk(folder: &std::path::Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap());
    entries.map(|e| 1 + if e.file_type().unwrap().is_dir() { walk(&e.path()) } else { 0 }).sum()
}

fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_cycles_leave_processes_descriptors_files_and_memory_as_they_were() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let cycle = async |moods: bool| {
        if moods {
            house.mood("no-identity");
            engine.fork(children(2)).await.unwrap_err();
        }
        let forked = engine.fork(children(4)).await.unwrap();
        for info in &forked {
            exec(&engine, &id(info), &["x"]).await.unwrap();
        }
        for info in &forked {
            engine.kill(&id(info)).await.unwrap();
        }
    };
    for n in 0..10 {
        cycle(n % 5 == 0).await;
    }
    let (before, memory) = (held(&house), resident_kib());
    for n in 0..50 {
        cycle(n % 10 == 0).await;
    }
    eventually(|| held(&house).is_no_more_than(&before)).await;
    let grown = resident_kib().saturating_sub(memory);
    assert!(grown < 8 * 1024, "memory grew by {grown} KiB");
}
