use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use forkd_engine::Engine;
use forkd_protocol::control::{Connection, FdRole, MemoryMode, Request, Snapshot};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{BranchMode, BranchRequest, CreateSandboxes, RemoveSnapshot, SandboxInfo};
use futures::future::join_all;

use crate::support::*;

async fn source(house: &House) -> (Engine, SandboxInfo, SandboxId) {
    let engine = house.furnished(bounds()).await;
    let id = fork_one(&engine).await;
    (engine.clone(), engine.sandbox(&id).unwrap(), id)
}

fn asked(tag: &str, mode: BranchMode) -> BranchRequest {
    BranchRequest { tag: Some(tag.to_owned()), mode: Some(mode), ..BranchRequest::default() }
}

async fn said(engine: &Engine, id: &SandboxId, verb: &str) -> String {
    exec(engine, id, &[verb]).await.unwrap().stdout
}

#[tokio::test]
async fn a_branch_in_each_mode_is_a_snapshot_and_the_source_goes_on() {
    let house = House::new();
    let (engine, source, id) = source(&house).await;
    for (count, (tag, mode)) in
        [("f", BranchMode::Full), ("d", BranchMode::Diff), ("l", BranchMode::Live)].into_iter().enumerate()
    {
        let made = engine.branch(&id, asked(tag, mode)).await.unwrap();
        assert_eq!(
            (made.status.as_str(), made.branched_from.as_deref()),
            ("ready", Some(source.id.as_str()))
        );
        let parent = (mode != BranchMode::Full).then(|| "t".to_owned());
        assert_eq!(made.parent_tag, parent, "{mode:?}");
        assert!(made.pause_ms.is_some() && made.workload_pause_ms >= made.pause_ms);
        assert_eq!(said(&engine, &id, "frozen").await, "false");
        let info = engine.sandbox(&id).unwrap();
        assert_eq!(
            (info.state.as_str(), info.branch_count, info.has_branched),
            ("running", count as u64 + 1, true)
        );
        let child = CreateSandboxes { snapshot_tag: tag.to_owned(), ..children(1) };
        assert_eq!(engine.fork(child).await.unwrap().len(), 1);
    }
    assert_eq!(engine.snapshots().await.unwrap().len(), 4);
}

#[tokio::test]
async fn children_of_a_sandbox_are_those_of_its_branch() {
    let house = House::new();
    let (engine, source, _) = source(&house).await;
    let request =
        CreateSandboxes { snapshot_tag: String::new(), from_sandbox: Some(source.id.clone()), ..children(2) };
    let made = engine.fork(request.clone()).await.unwrap();
    assert_eq!(made.len(), 2);
    assert!(made[0].snapshot_tag.starts_with(&format!("branch-{}", source.id)));
    let both = CreateSandboxes { snapshot_tag: "t".to_owned(), ..request };
    assert_eq!(engine.fork(both).await.unwrap_err().class(), ErrorClass::Caller);
}

#[tokio::test]
async fn what_fails_leaves_the_source_running_and_nothing_else() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    for (mood, mode, code) in [
        ("no-freeze", BranchMode::Live, "guest_did_not_freeze"),
        ("refuse-snapshot", BranchMode::Diff, "host_unfit"),
        ("full", BranchMode::Live, "no_space"),
        ("writer-full", BranchMode::Live, "no_space"),
        ("writer-killed", BranchMode::Live, "writer_failed"),
        ("old-monitor", BranchMode::Live, "monitor_too_old"),
    ] {
        house.mood(mood);
        let id = fork_one(&engine).await;
        let error = engine.branch(&id, asked("b", mode)).await.unwrap_err();
        assert_eq!(error.code(), code, "{mood}: {error}");
        assert_eq!(said(&engine, &id, "frozen").await, "false", "{mood}");
        assert_eq!(engine.snapshots().await.unwrap().len(), 1, "{mood}");
        assert!(names(&house.root().join("staging")).is_empty(), "{mood}");
        engine.kill(&id).await.unwrap();
    }
    let id = fork_one(&engine).await;
    engine.branch(&id, asked("b", BranchMode::Live)).await.unwrap();
    assert_eq!(engine.branch(&id, asked("b", BranchMode::Live)).await.unwrap_err().code(), "tag_taken");
}

#[tokio::test]
async fn a_failure_that_nobody_waited_for_is_listed_until_its_tag_is_removed() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    house.mood("writer-full");
    let id = fork_one(&engine).await;
    let quick = BranchRequest { wait: Some(false), ..asked("b", BranchMode::Live) };
    assert_eq!(engine.branch(&id, quick).await.unwrap().status, "writing");
    let tag: forkd_protocol::names::Tag = "b".parse().unwrap();
    let failed = loop {
        let info = engine.snapshot(tag.clone()).await.unwrap();
        if info.status != "writing" {
            break info;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(failed.status, "failed");
    assert!(failed.warning.unwrap().contains("space"));
    let child = CreateSandboxes { snapshot_tag: "b".to_owned(), ..children(1) };
    assert_eq!(engine.fork(child).await.unwrap_err().code(), "snapshot_not_ready");
    engine.remove_snapshot(tag.clone(), RemoveSnapshot::default()).await.unwrap();
    assert_eq!(engine.snapshot(tag).await.unwrap_err().class(), ErrorClass::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_at_once_are_right_or_refused_by_the_cap() {
    let house = House::new();
    let (engine, source, id) = source(&house).await;
    let tags: Vec<String> = (0..10).map(|n| format!("b{n}")).collect();
    let modes = [BranchMode::Live, BranchMode::Diff, BranchMode::Full];
    let asking =
        tags.iter().zip(modes.iter().cycle()).map(|(tag, mode)| engine.branch(&id, asked(tag, *mode)));
    let all = join_all(asking).await;
    let mut made = 0;
    for (tag, answer) in tags.iter().zip(all) {
        match answer {
            Ok(info) => {
                assert_eq!((&info.tag, info.branched_from.as_ref()), (tag, Some(&source.id)));
                let child = CreateSandboxes { snapshot_tag: tag.clone(), ..children(1) };
                let child = engine.fork(child).await.unwrap().remove(0);
                assert_eq!(said(&engine, &child.id.parse().unwrap(), "frozen").await, "false");
                made += 1;
            }
            Err(refused) => assert_eq!(refused.code(), "branch_limit"),
        }
    }
    let report = engine.store().verify(None, false).unwrap();
    assert!(report.damage.is_empty(), "{report:?}");
    assert!(made >= 1 && engine.snapshots().await.unwrap().len() == made + 1);
    assert_eq!(engine.sandbox(&id).unwrap().branch_count, made as u64);
    assert_eq!(said(&engine, &id, "frozen").await, "false");
    // A child tells of its hot pages beside all this.
    eventually(|| names(&house.root().join("staging")).is_empty()).await;
}

#[tokio::test]
async fn a_branch_of_a_sandbox_whose_snapshot_is_gone_works_also_after_a_restart() {
    let house = House::new();
    let (engine, _, id) = source(&house).await;
    engine.branch(&id, asked("b1", BranchMode::Live)).await.unwrap();
    let force = RemoveSnapshot { force: true, ..RemoveSnapshot::default() };
    engine.remove_snapshot("t".parse().unwrap(), force).await.unwrap();
    engine.shutdown();
    drop(engine);
    let engine = house.open(bounds()).await;
    let made = engine.branch(&id, asked("b2", BranchMode::Live)).await.unwrap();
    let child = CreateSandboxes { snapshot_tag: made.tag, ..children(1) };
    assert_eq!(engine.fork(child).await.unwrap().len(), 1);
}

/// How far a controller had come with the disk of a branch when it was killed.
#[derive(Debug, Clone, Copy)]
enum Cut {
    /// The empty top was made; the monitor was not asked.
    BeforeTheMonitor,
    /// The monitor writes to the new top.
    AfterTheMonitor,
    /// Half of the files are renamed.
    BetweenTheRenames,
    /// All are, and the frozen one is not taken in.
    AfterTheRenames,
}

/// Has the monitor freeze its top as a branch does, and leaves the rest undone.
fn break_off(house: &House, id: &SandboxId, cut: Cut) {
    let run = house.root().join("run").join(id.as_str());
    let file = |name: &str| {
        let path = run.join(name);
        std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap()
    };
    let (top, table) = (file("disk0.top.new"), file("disk0.frozen.extents"));
    top.set_len(64 * 4096).unwrap();
    if matches!(cut, Cut::BeforeTheMonitor) {
        return;
    }
    let out = || tempfile::tempfile().unwrap();
    let roles = vec![
        FdRole::StateOut,
        FdRole::MemoryOut,
        FdRole::MemoryExtentsOut,
        FdRole::DiskExtentsOut { disk: 0 },
        FdRole::DiskTopNew { disk: 0 },
    ];
    let files = [out(), out(), out(), table, top];
    let fds: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    let request =
        Request::Snapshot(Snapshot { roles, resume: true, memory: MemoryMode::Changed, guarded: false });
    let socket = UnixStream::connect(run.join("control.sock")).unwrap();
    Connection::new(socket).call(&request, &fds).unwrap();
    if matches!(cut, Cut::BetweenTheRenames | Cut::AfterTheRenames) {
        std::fs::rename(run.join("disk0.top"), run.join("disk0.frozen")).unwrap();
    }
    if matches!(cut, Cut::AfterTheRenames) {
        std::fs::rename(run.join("disk0.top.new"), run.join("disk0.top")).unwrap();
    }
}

#[tokio::test]
async fn a_branch_that_was_cut_off_is_brought_to_its_end_by_the_next() {
    let house = House::new();
    let (mut engine, _, _) = source(&house).await;
    for (n, cut) in
        [Cut::BeforeTheMonitor, Cut::AfterTheMonitor, Cut::BetweenTheRenames, Cut::AfterTheRenames]
            .into_iter()
            .enumerate()
    {
        let id = fork_one(&engine).await;
        engine.branch(&id, asked(&format!("a{n}"), BranchMode::Live)).await.unwrap();
        engine.shutdown();
        drop(engine);
        break_off(&house, &id, cut);
        engine = house.open(bounds()).await;
        let found = engine.sandbox(&id).unwrap();
        assert_eq!((found.branch_count, found.has_branched), (1, true), "{cut:?}");
        let tag = format!("b{n}");
        engine.branch(&id, asked(&tag, BranchMode::Live)).await.unwrap();
        assert_eq!(engine.sandbox(&id).unwrap().branch_count, 2);
        let disk = engine.snapshot_detail(tag.parse().unwrap()).await.unwrap().disk_layers;
        // All frozen tops are alike here, so a second one in a row adds nothing.
        assert!(!disk.is_empty(), "{cut:?}");
        let left = names(&house.root().join("run").join(id.as_str()));
        assert!(
            left.iter().all(|name| !name.contains("frozen") && !name.contains("new")),
            "{cut:?}: {left:?}"
        );
        engine.pause(&id).await.unwrap();
        engine.resume(&id).await.unwrap();
        engine.kill(&id).await.unwrap();
    }
}

#[tokio::test]
async fn where_a_monitor_does_not_tell_its_top_a_broken_branch_is_the_last() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    house.mood("tells-no-top");
    let id = fork_one(&engine).await;
    engine.branch(&id, asked("a", BranchMode::Live)).await.unwrap();
    break_off(&house, &id, Cut::AfterTheMonitor);
    let refused = engine.branch(&id, asked("b", BranchMode::Live)).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Conflict);
    assert!(refused.to_string().contains("fork a new sandbox"), "{refused}");
    assert_eq!(said(&engine, &id, "frozen").await, "false");
}
