//! Snapshots that leave the store and come back.

use std::path::Path;

use forkd_protocol::rest::{Fate, SnapshotInfo, Transfer};
use serde_json::json;

use crate::support::{Children, Snapshot, alone, bare, forkd, get, post};

/// `a`, and over it `b`: each adds a file, and what it says to the memory of nobody.
fn chain() -> (Snapshot, Snapshot) {
    let mut below = bare().to_owned();
    let made = ["a", "b"].map(|name| {
        let children = Children::fork(&below, 1);
        children[0].sh(&format!("echo {name} >/{name}"));
        let snapshot = Snapshot::named(&format!("e2e-pack-{name}"));
        let asked = json!({ "tag": snapshot.tag, "mode": "diff" });
        post(&children[0].path("branch"), asked).with_status(201);
        below.clone_from(&snapshot.tag);
        snapshot
    });
    let [a, b] = made;
    (a, b)
}

fn has_both_files(tag: &str) {
    let children = Children::fork(tag, 1);
    assert_eq!(children[0].sh("cat /a /b"), "a\nb");
}

fn ids() -> Vec<(String, String)> {
    let snapshots: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
    let own = snapshots.into_iter().filter(|s| s.tag.starts_with("e2e-pack-"));
    own.map(|s| (s.tag, s.id)).collect()
}

#[test]
fn a_chain_that_was_packed_and_removed_comes_back_from_the_file_and_from_a_hub() {
    let _world = alone();
    let (a, b) = chain();
    let before = ids();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (file, hub) = (path("b.forkd"), format!("file://{}", path("hub")));
    let packed: Transfer = forkd(&["--json", "pack", "--tag", &b.tag, "--out", &file]).ok().parsed();
    assert!(packed.objects_moved == packed.objects && Path::new(&file).is_file(), "{packed:?}");
    let pushed: Transfer = forkd(&["--json", "push", &b.tag, &hub]).ok().parsed();
    assert_eq!(pushed.objects_moved, packed.objects);
    let again: Transfer = forkd(&["--json", "push", &b.tag, &hub]).ok().parsed();
    assert_eq!(again.objects_moved, 0);
    let refused = forkd(&["unpack", &file, "--tag", &a.tag]).ends_with(4);
    assert!(refused.stderr.contains(&b.tag), "{}", refused.stderr);

    let gone = |snapshots: [&Snapshot; 2]| {
        forkd(&["rmi", &snapshots[0].tag, &snapshots[1].tag]).ok();
        assert!(ids().is_empty());
    };
    gone([&a, &b]);
    let unpacked: Transfer = forkd(&["--json", "unpack", &file]).ok().parsed();
    // The base, image and kernel were there: only what the chain adds moved.
    assert!(unpacked.objects_moved < packed.objects, "{unpacked:?}");
    assert!(unpacked.snapshots.iter().filter(|s| s.fate == Fate::New).count() == 2, "{unpacked:?}");
    assert_eq!(ids(), before);
    forkd(&["verify", &b.tag]).ok();
    has_both_files(&b.tag);

    gone([&a, &b]);
    forkd(&["pull", &format!("{hub}/{}", b.tag)]).ok();
    assert_eq!(ids(), before);
    has_both_files(&b.tag);
    assert!(forkd(&["images", "--remote", &hub]).ok().text().contains(&b.tag));
}
