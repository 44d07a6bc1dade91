//! Snapshots of sandboxes that run on.

use serde_json::{Value, json};

use forkd_protocol::rest::SnapshotInfo;

use crate::support::{
    Child, Children, Snapshot, at_soak, eventually, forkd, get, numpy, post, send, together,
};

/// A counter that a process of the sandbox writes down without end, and its newest value.
const COUNT: &str = "n=0; while :; do n=$((n+1)); echo $n >/count.new; mv /count.new /count; done";

fn counter(child: &Child) -> u64 {
    child.sh("cat /count").trim().parse().unwrap()
}

fn branch(source: &Child, tag: &str, mode: &str) -> (Snapshot, SnapshotInfo) {
    let snapshot = Snapshot::named(tag);
    let made = post(&source.path("branch"), json!({ "tag": tag, "mode": mode })).with_status(201);
    (snapshot, made.parsed())
}

#[test]
fn a_branch_in_each_mode_has_memory_disk_and_processes_and_the_source_goes_on() {
    let _world = together();
    let sources = Children::fork(numpy(), 1);
    let source = &sources[0];
    source.sh(&format!("setsid sh -c '{COUNT}' >/dev/null 2>&1 & sleep 1"));
    for (round, mode) in ["live", "diff", "full"].into_iter().enumerate() {
        source.eval(&format!("kept = {round}"));
        source.sh(&format!("echo {mode} >/mode"));
        let (snapshot, info) = branch(source, &format!("e2e-branch-{mode}"), mode);
        assert_eq!(
            (info.status.as_str(), info.branched_from.as_deref()),
            ("ready", Some(source.id.as_str()))
        );
        assert_eq!(info.parent_tag.is_some(), mode != "full");

        let children = Children::fork(&snapshot.tag, 2);
        for child in children.iter() {
            assert_eq!(child.value("kept"), round, "{mode}: what the interpreter holds");
            assert_eq!(child.sh("cat /mode"), mode, "{mode}: what lies on the disk");
            let before = counter(child);
            eventually("the counter of a child goes on", || (counter(child) > before).then_some(()));
        }
        let random: Vec<Value> = children.iter().map(|child| child.value("numpy.random.random()")).collect();
        assert_ne!(random[0], random[1]);
        let before = counter(source);
        eventually("the counter of the source goes on", || (counter(source) > before).then_some(()));
    }
    let seen = source.seen().unwrap();
    assert_eq!((seen.branch_count, seen.has_branched), (3, true));
}

#[test]
fn a_chain_of_branches_keeps_every_level() {
    let _world = together();
    let depth = at_soak("levels of branches", 5, 3);
    let mut below = numpy().to_owned();
    let mut chain = Vec::new();
    for level in 0..depth {
        let children = Children::fork(&below, 1);
        children[0].sh(&format!("echo {level} >/level-{level}"));
        children[0].eval(&format!("level_{level} = numpy.full(1000, {level})"));
        let (snapshot, info) = branch(&children[0], &format!("e2e-chain-{level}"), "live");
        assert_eq!(info.chain_depth as usize, level + 2);
        below.clone_from(&snapshot.tag);
        chain.push(snapshot);
    }
    let children = Children::fork(&below, 1);
    for level in 0..depth {
        assert_eq!(children[0].sh(&format!("cat /level-{level}")), level.to_string());
        assert_eq!(children[0].value(&format!("int(level_{level}.sum())")), level * 1000);
    }
    let refused = forkd(&["rmi", &chain[0].tag]).ends_with(4);
    assert!(refused.stderr.contains(&chain[1].tag), "{}", refused.stderr);
    let detail = get(&format!("/v1/snapshots/{below}/info")).with_status(200).json();
    assert_eq!(detail["ancestors"].as_array().unwrap().len(), depth);
    forkd(&["verify", &below]).ok();
    let flat = Snapshot::named("e2e-chain-flat");
    forkd(&["snapshot-compact", "--from", &below, "--to", &flat.tag]).ok();
    let children = Children::fork(&flat.tag, 1);
    assert_eq!(children[0].sh("cat /level-0"), "0");
}

#[test]
fn children_come_from_a_running_sandbox_and_a_command_makes_a_snapshot() {
    let _world = together();
    let sources = Children::fork(numpy(), 1);
    sources[0].eval("kept = 'from the source'");
    let made = forkd(&["fork", "--from-sandbox", &sources[0].id, "-n", "2", "--json"]).ok();
    let children = Children::of(made.parsed());
    let branch = Snapshot::made(&children[0].info.snapshot_tag);
    assert!(children.iter().all(|child| child.value("kept") == "from the source"));
    let diff = Snapshot::named("e2e-diff");
    forkd(&["snapshot-diff", "--from", &branch.tag, "--tag", &diff.tag, "--exec", "echo a >/a"]).ok();
    assert_eq!(Children::fork(&diff.tag, 1)[0].sh("cat /a"), "a");
    let failed = forkd(&["snapshot-diff", "--from", &branch.tag, "--tag", "e2e-diff-2", "--exec", "exit 3"]);
    assert_ne!(failed.code, Some(0));
    send("GET", "/v1/snapshots/e2e-diff-2/info", None).with_status(404);
}

#[test]
fn a_branch_that_nobody_waits_for_becomes_ready_also_where_its_source_is_killed() {
    let _world = together();
    let sources = Children::fork(numpy(), 1);
    sources[0].eval("kept = list(range(1000))");
    let snapshot = Snapshot::named("e2e-quick");
    let asked = json!({ "tag": snapshot.tag, "mode": "live", "wait": false });
    let told: SnapshotInfo = post(&sources[0].path("branch"), asked).with_status(202).parsed();
    assert_eq!(told.status, "writing");
    drop(sources);
    eventually("the branch is ready", || {
        let all: Vec<SnapshotInfo> = get("/v1/snapshots").parsed();
        let info = all.into_iter().find(|info| info.tag == snapshot.tag)?;
        assert_ne!(info.status, "failed", "{info:?}");
        (info.status == "ready").then_some(())
    });
    assert_eq!(Children::fork(&snapshot.tag, 1)[0].value("len(kept)"), 1000);
}
