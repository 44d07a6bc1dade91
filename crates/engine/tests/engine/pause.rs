use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use forkd_engine::{Bounds, Engine};
use forkd_protocol::control::{Connection, Request};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{BranchMode, BranchRequest, CreateSandboxes, RemoveSnapshot, SandboxInfo};
use futures::future::join_all;

use crate::support::*;

async fn one(house: &House) -> (Engine, SandboxInfo, SandboxId) {
    let engine = house.furnished(bounds()).await;
    let id = fork_one(&engine).await;
    (engine.clone(), engine.sandbox(&id).unwrap(), id)
}

fn live(tag: &str) -> BranchRequest {
    BranchRequest { tag: Some(tag.to_owned()), mode: Some(BranchMode::Live), ..BranchRequest::default() }
}

async fn said(engine: &Engine, id: &SandboxId, verb: &str) -> String {
    exec(engine, id, &[verb]).await.unwrap().stdout
}

/// Lets go of the engine, as a controller that is killed does, and opens another.
async fn restarted(house: &House, engine: Engine) -> Engine {
    engine.shutdown();
    drop(engine);
    house.open(bounds()).await
}

fn layers(house: &House) -> usize {
    names(&house.root().join("layers")).len()
}

fn ask(house: &House, id: &SandboxId, request: &Request) {
    let socket = house.root().join("run").join(id.as_str()).join("control.sock");
    Connection::new(UnixStream::connect(socket).unwrap()).call(request, &[]).unwrap();
}

#[tokio::test]
async fn a_paused_sandbox_has_no_process_and_goes_on_under_its_name() {
    let house = House::new();
    let (engine, before, id) = one(&house).await;
    engine.branch(&id, live("b")).await.unwrap();
    let paused = engine.pause(&id).await.unwrap();
    assert_eq!((paused.state.as_str(), paused.pid, paused.id.as_str()), ("paused", None, before.id.as_str()));
    assert_eq!((&paused.snapshot_id, paused.branch_count), (&before.snapshot_id, 1));
    assert!(!is_running(before.pid.unwrap()));
    assert_eq!(names(&house.root().join("run").join(id.as_str())), ["console.log", "monitor.log"]);
    assert!(engine.console(&id).await.unwrap().is_empty());

    let refused = exec(&engine, &id, &["x"]).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("not_running", ErrorClass::Conflict));
    assert!(refused.to_string().contains(&format!("forkd resume {id}")), "{refused}");
    for refused in [
        engine.ping(&id).await.unwrap_err(),
        engine.branch(&id, live("c")).await.unwrap_err(),
        engine.stats(&id).await.unwrap_err(),
        engine.pause(&id).await.unwrap_err(),
    ] {
        assert_eq!((refused.code(), refused.class()), ("not_running", ErrorClass::Conflict), "{refused}");
    }

    let resumed = engine.resume(&id).await.unwrap();
    assert_eq!((resumed.state.as_str(), resumed.branch_count), ("running", 1));
    assert!(resumed.pid.is_some() && resumed.pid != before.pid);
    assert_eq!(resumed.snapshot_id, before.snapshot_id);
    assert_eq!(said(&engine, &id, "frozen").await, "false");
    let refused = engine.resume(&id).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("not_paused", ErrorClass::Conflict));
    engine.kill(&id).await.unwrap();
}

#[tokio::test]
async fn it_is_continued_by_another_controller_also_where_its_snapshot_is_gone() {
    let house = House::new();
    let (mut engine, before, id) = one(&house).await;
    engine.branch(&id, live("b")).await.unwrap();
    for round in 0..3 {
        engine.pause(&id).await.unwrap();
        if round == 0 {
            let force = RemoveSnapshot { force: true, ..RemoveSnapshot::default() };
            engine.remove_snapshot("t".parse().unwrap(), force).await.unwrap();
            engine.remove_snapshot("b".parse().unwrap(), RemoveSnapshot::default()).await.unwrap();
        }
        engine.collect_garbage(false).await.unwrap();
        engine = restarted(&house, engine).await;
        let found = engine.sandbox(&id).unwrap();
        assert_eq!((found.state.as_str(), found.branch_count, found.pid), ("paused", 1, None));
        assert_eq!(engine.resume(&id).await.unwrap().state, "running");
        // A base, its own memory and its own disk, however often it was paused; each with its table.
        assert_eq!(layers(&house), 6);
        engine = restarted(&house, engine).await;
        let found = engine.sandbox(&id).unwrap();
        assert_eq!((found.state.as_str(), found.snapshot_id), ("running", before.snapshot_id.clone()));
    }
    let made = engine.branch(&id, live("again")).await.unwrap();
    assert_eq!((made.parent_id, made.chain_depth), (before.snapshot_id, 2));
    let child = CreateSandboxes { snapshot_tag: "again".to_owned(), ..children(1) };
    let child = engine.fork(child).await.unwrap().remove(0).id.parse().unwrap();
    engine.pause(&child).await.unwrap();
    engine.kill(&id).await.unwrap();
    engine.resume(&child).await.unwrap();
    engine.kill(&child).await.unwrap();
    engine.remove_snapshot("again".parse().unwrap(), RemoveSnapshot::default()).await.unwrap();
    assert_eq!(layers(&house), 0);
}

#[tokio::test]
async fn killed_while_paused_it_leaves_nothing() {
    let house = House::new();
    let (engine, _, id) = one(&house).await;
    let before = layers(&house);
    engine.pause(&id).await.unwrap();
    assert!(layers(&house) > before);
    let engine = restarted(&house, engine).await;
    engine.kill(&id).await.unwrap();
    engine.kill(&id).await.unwrap();
    assert!(engine.sandboxes().is_empty() && house.run_folders().is_empty());
    assert_eq!((layers(&house), names(&house.root().join("snapshots")).len()), (before, 1));
    assert!(restarted(&house, engine).await.sandboxes().is_empty());
}

#[tokio::test]
async fn a_pause_that_fails_leaves_it_running_and_nothing_else() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let before = layers(&house);
    for (mood, code) in [
        ("no-freeze", "guest_did_not_freeze"),
        ("refuse-snapshot", "host_unfit"),
        ("full", "no_space"),
        ("old-monitor", "monitor_too_old"),
    ] {
        house.mood(mood);
        let id = fork_one(&engine).await;
        let failed = engine.pause(&id).await.unwrap_err();
        assert_eq!(failed.code(), code, "{mood}: {failed}");
        assert_eq!(engine.sandbox(&id).unwrap().state, "running", "{mood}");
        assert_eq!(said(&engine, &id, "frozen").await, "false", "{mood}");
        assert_eq!(layers(&house), before, "{mood}");
        // Beside it the pages are noted that the first child changed, which pass through that folder.
        eventually(|| names(&house.root().join("staging")).is_empty()).await;
        engine.kill(&id).await.unwrap();
    }
    // What ends meanwhile has ended.
    house.mood("die-at-write");
    let id = fork_one(&engine).await;
    engine.pause(&id).await.unwrap_err();
    eventually(|| engine.sandbox(&id).unwrap().state == "ended").await;
}

#[tokio::test]
async fn what_the_store_refuses_leaves_machine_and_workload_running() {
    let house = House::new();
    let (engine, _, id) = one(&house).await;
    let staging = house.root().join("staging");
    std::fs::rename(&staging, house.root().join("aside")).unwrap();
    engine.pause(&id).await.unwrap_err();
    std::fs::rename(house.root().join("aside"), &staging).unwrap();
    assert_eq!(engine.sandbox(&id).unwrap().state, "running");
    assert_eq!(said(&engine, &id, "frozen").await, "false");
    engine.pause(&id).await.unwrap();
}

#[tokio::test]
async fn a_continuation_that_fails_leaves_it_paused() {
    let house = House::new();
    drop(house.furnished(bounds()).await);
    let impatient = Bounds { answer: std::time::Duration::from_millis(400), ..bounds() };
    let engine = house.open(impatient).await;
    let id = fork_one(&engine).await;
    engine.pause(&id).await.unwrap();
    for (mood, code) in [
        ("refuse", "not_continued"),
        ("die", "not_continued"),
        ("no-continue", "not_continued"),
        ("die-at-continue", "not_continued"),
        ("stall-at-continue", "not_continued"),
        ("deaf", "not_continued"),
    ] {
        house.mood(mood);
        let failed = engine.resume(&id).await.unwrap_err();
        assert_eq!(failed.code(), code, "{mood}: {failed}");
        assert!(failed.body().error.contains("paused still"), "{mood}: {failed}");
        assert_eq!(engine.sandbox(&id).unwrap().state, "paused", "{mood}");
        assert!(house.run_folders().is_empty(), "{mood}");
        assert!(engine.console(&id).await.unwrap().is_empty());
    }
    engine.resume(&id).await.unwrap();
    assert_eq!(said(&engine, &id, "frozen").await, "false");
}

#[tokio::test]
async fn an_agent_that_cannot_go_on_is_not_paused() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    house.mood("old-agent");
    create(&engine, &snapshot("t")).await.unwrap();
    let id = fork_one(&engine).await;
    let refused = engine.pause(&id).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("agent_too_old", ErrorClass::Conflict));
    assert!(refused.to_string().contains("forkd snapshot refresh t"), "{refused}");
    assert_eq!(said(&engine, &id, "frozen").await, "false");
}

#[tokio::test]
async fn of_many_at_once_one_wins_and_a_kill_wins_over_all() {
    let house = House::new();
    let (engine, _, id) = one(&house).await;
    for _ in 0..3 {
        let paused = join_all((0..5).map(|_| engine.pause(&id))).await;
        assert_eq!(paused.iter().filter(|p| p.is_ok()).count(), 1);
        let resumed = join_all((0..5).map(|_| engine.resume(&id))).await;
        assert_eq!(resumed.iter().filter(|r| r.is_ok()).count(), 1);
        for refused in paused.into_iter().chain(resumed).filter_map(Result::err) {
            assert_eq!(refused.class(), ErrorClass::Conflict, "{refused}");
        }
    }
    let (_, killed) = tokio::join!(engine.pause(&id), engine.kill(&id));
    killed.unwrap();
    assert!(engine.sandboxes().is_empty() && house.run_folders().is_empty());
    assert_eq!(layers(&house), 2);
}

#[tokio::test]
async fn a_controller_that_was_killed_while_pausing_leaves_it_running() {
    let house = House::new();
    let (engine, before, id) = one(&house).await;
    // The workload is frozen and the machine stands still: so far it had come.
    engine.shutdown();
    drop(engine);
    ask(&house, &id, &Request::Pause);
    let engine = house.open(bounds()).await;
    assert_eq!(engine.sandbox(&id).unwrap(), before);
    assert_eq!(said(&engine, &id, "frozen").await, "false");
    engine.pause(&id).await.unwrap();
}

#[tokio::test]
async fn a_controller_that_was_killed_after_the_commit_leaves_it_paused() {
    let house = House::new();
    let (engine, before, id) = one(&house).await;
    let (store, run) = (engine.store().clone(), house.root().join("run").join(id.as_str()));
    engine.pause(&id).await.unwrap();
    engine.shutdown();
    drop((engine, store));
    // Its monitor had not ended yet, or the one that it was to be continued with had just been started.
    for noted in [true, false] {
        let socket = run.join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let monitor = Command::new(house.libexec().join("forkd-vmm"))
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = monitor.id();
        if noted {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            let ticks = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().to_owned();
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            std::fs::write(run.join("monitor.pid"), format!("{pid} {ticks} {boot}")).unwrap();
        }
        let engine = house.open(bounds()).await;
        let found = engine.sandbox(&id).unwrap();
        assert_eq!((found.state.as_str(), &found.snapshot_id), ("paused", &before.snapshot_id));
        eventually(|| !is_running(pid)).await;
        assert_eq!(names(&run), ["console.log", "monitor.log"]);
        // Collected by the engine, as it is this process's child, where it was noted.
        let mut monitor = monitor;
        drop(monitor.wait());
        engine.shutdown();
    }
    let engine = house.open(bounds()).await;
    engine.resume(&id).await.unwrap();
    assert_eq!(said(&engine, &id, "still").await, "still");
}
