use std::collections::HashSet;
use std::time::Duration;

use forkd_engine::{Admission, Engine, EngineConfig, EngineError, ForkError};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;

use crate::support::*;

#[tokio::test]
async fn children_start_run_and_leave_nothing() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let forked = engine.fork(children(8)).await.unwrap();
    let ids: HashSet<_> = forked.iter().map(|info| info.id.clone()).collect();
    let pids: Vec<_> = forked.iter().map(|info| info.pid.unwrap()).collect();
    assert_eq!((ids.len(), house.run_folders().len()), (8, 8));
    for info in &forked {
        assert_eq!(info.state, "running");
        let timing = info.timing;
        assert!(0 < timing.started_us && timing.started_us <= timing.restored_us);
        assert!(timing.restored_us <= timing.answered_us);
        assert_eq!(exec(&engine, &id(info), &["hello", "you"]).await.unwrap().stdout, "hello you");
    }
    assert_eq!(engine.sandboxes(), forked);
    for info in &forked {
        engine.kill(&id(info)).await.unwrap();
    }
    assert!(engine.sandboxes().is_empty() && house.run_folders().is_empty());
    assert!(engine.store().sandboxes().unwrap().is_empty());
    // A monitor that has ended is its reaper's, which takes notice of it in its own time: in the end there are no zombies.
    let gone = |&pid: &u32| !std::path::Path::new(&format!("/proc/{pid}")).exists();
    eventually(|| pids.iter().all(gone)).await;
}

#[tokio::test]
async fn one_that_fails_takes_all_with_it_and_is_named() {
    for (mood, says) in [
        ("refuse", "lacks what the guest was shown"),
        ("die", "dying of a mood"),
        ("no-identity", "a hook failed"),
        ("die-at-identity", "exited with code 9"),
    ] {
        let house = House::new();
        let engine = house.furnished(bounds()).await;
        house.mood(mood);
        let e = engine.fork(children(5)).await.unwrap_err();
        let body = e.body();
        assert_eq!((body.code.as_str(), body.failures.len()), ("fork_failed", 1), "{body:?}");
        assert!(body.failures[0].starts_with("sb-") && body.failures[0].contains(says), "{body:?}");
        assert!(body.error.contains("1 of 5"), "{body:?}");
        assert!(engine.sandboxes().is_empty(), "{mood}");
        assert!(house.run_folders().is_empty(), "{mood}");
        assert!(engine.store().sandboxes().unwrap().is_empty());
        // The snapshot is as good as before.
        fork_one(&engine).await;
    }
}

#[tokio::test]
async fn a_host_that_is_unfit_is_told_from_a_guest_that_fails() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    house.mood("refuse");
    assert_eq!(engine.fork(children(1)).await.unwrap_err().class(), ErrorClass::HostUnfit);
    house.mood("no-identity");
    assert_eq!(engine.fork(children(1)).await.unwrap_err().class(), ErrorClass::GuestFault);
}

#[tokio::test]
async fn a_guest_that_never_answers_is_late() {
    for mood in ["stall-at-identity", "mute", "deaf", "babble", "early"] {
        let house = House::new();
        let engine = house.furnished(bounds()).await;
        drop(engine);
        let engine =
            house.open(forkd_engine::Bounds { answer: Duration::from_millis(400), ..bounds() }).await;
        house.mood(mood);
        let e = engine.fork(children(1)).await.unwrap_err();
        assert!(e.body().failures[0].contains("answer /forkd/v1/identity within 0.4 s"), "{:?}", e.body());
        assert!(house.run_folders().is_empty() && engine.sandboxes().is_empty());
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_nothing() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    house.mood("stall-at-identity");
    let forking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.fork(children(4)).await }
    });
    eventually(|| house.run_folders().len() == 4).await;
    forking.abort();
    assert!(forking.await.unwrap_err().is_cancelled());
    eventually(|| engine.sandboxes().is_empty() && house.run_folders().is_empty()).await;
    fork_one(&engine).await;
}

#[tokio::test]
async fn what_is_starting_is_seen_and_can_be_killed() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    house.mood("stall-at-identity");
    let forking = tokio::spawn({
        let engine = engine.clone();
        async move { engine.fork(children(1)).await }
    });
    eventually(|| engine.sandboxes().iter().any(|info| info.state == "starting")).await;
    let starting = id(&engine.sandboxes()[0]);
    let e = exec(&engine, &starting, &["x"]).await.unwrap_err();
    assert_eq!((e.code(), e.class()), ("not_running", ErrorClass::Conflict));
    engine.kill(&starting).await.unwrap();
    let e = forking.await.unwrap().unwrap_err();
    assert!(matches!(e, EngineError::Fork(ForkError::GivenUp)), "{e}");
    assert!(house.run_folders().is_empty());
}

#[tokio::test]
async fn nonsense_is_refused_before_anything_starts() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    for (n, tag, class) in [
        (0, "t", ErrorClass::Caller),
        (1001, "t", ErrorClass::Caller),
        (1, "..", ErrorClass::Caller),
        (1, "a/../b", ErrorClass::Caller),
        (1, "", ErrorClass::Caller),
        (1, "unknown", ErrorClass::NotFound),
    ] {
        let mut asked = children(n);
        asked.snapshot_tag = tag.to_owned();
        assert_eq!(engine.fork(asked).await.unwrap_err().class(), class, "{n} {tag}");
    }
    let mut asked = children(1);
    asked.memory_limit_mib = Some(1);
    assert_eq!(engine.fork(asked).await.unwrap_err().class(), ErrorClass::Caller);
    assert!(house.run_folders().is_empty());
}

#[tokio::test]
async fn a_limit_is_kept_or_refused_never_ignored() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let mut asked = children(1);
    asked.memory_limit_mib = Some(256);
    match engine.fork(asked).await {
        Ok(forked) => {
            let pid = forked[0].pid.unwrap();
            let group = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            assert!(group.contains("/forkd/"), "{group}");
            let leaf = format!("/sys/fs/cgroup{}", group.trim().trim_start_matches("0::"));
            let max = std::fs::read_to_string(format!("{leaf}/memory.max")).unwrap();
            assert_eq!(max.trim(), (256_u64 << 20).to_string());
            engine.kill(&id(&forked[0])).await.unwrap();
        }
        Err(e) => {
            assert_eq!(e.class(), ErrorClass::HostUnfit, "{e}");
            assert!(house.run_folders().is_empty());
        }
    }
}

#[tokio::test]
async fn more_than_there_may_be_is_refused_with_the_figures_and_leaves_nothing() {
    let house = House::new();
    house.furnished(bounds()).await.shutdown();
    let admission = Admission { max_sandboxes: 5, ..house.config(bounds()).admission };
    let engine = Engine::open(EngineConfig { admission, ..house.config(bounds()) }).await.unwrap();
    let refused = engine.fork(children(6)).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("too_many_sandboxes", ErrorClass::Exhausted));
    assert!(refused.to_string().contains("0 of at most 5"), "{refused}");
    assert!(engine.sandboxes().is_empty() && house.run_folders().is_empty());
    // At once: together they are as many as there may be, or fewer, never more.
    let asked = futures::future::join_all((0..4).map(|_| engine.fork(children(2)))).await;
    let made: usize = asked.iter().flatten().map(Vec::len).sum();
    assert_eq!(made, 4);
    assert_eq!(engine.sandboxes().len(), 4);
    let room = engine.host_room();
    assert_eq!((room.sandboxes, room.max_sandboxes), (4, 5));
    assert!(room.memory_promised_bytes >= 4 * (128 << 20));
    let paused = id(&engine.sandboxes()[0]);
    engine.pause(&paused).await.unwrap();
    assert_eq!(engine.host_room().sandboxes, 3, "a paused one takes no memory");
    engine.fork(children(2)).await.unwrap();
    engine.resume(&paused).await.unwrap_err();
    engine.kill(&id(&engine.sandboxes()[1])).await.unwrap();
    engine.resume(&paused).await.unwrap();
}

#[tokio::test]
async fn a_kill_is_idempotent_also_of_what_died() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let child = fork_one(&engine).await;
    let (a, b) = tokio::join!(engine.kill(&child), engine.kill(&child));
    a.unwrap();
    b.unwrap();
    engine.kill(&child).await.unwrap();
    let never = "sb-0-0".parse().unwrap();
    assert_eq!(engine.kill(&never).await.unwrap_err().class(), ErrorClass::NotFound);

    let child = fork_one(&engine).await;
    exec(&engine, &child, &["stop"]).await.unwrap_err();
    engine.kill(&child).await.unwrap();
    assert!(engine.sandboxes().is_empty() && house.run_folders().is_empty());
}

#[tokio::test]
async fn a_missing_monitor_is_the_hosts_fault() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    std::fs::remove_file(house.libexec().join("forkd-vmm")).unwrap();
    let e = engine.fork(children(2)).await.unwrap_err();
    assert_eq!(e.class(), ErrorClass::HostUnfit, "{:?}", e.body());
    assert!(house.run_folders().is_empty() && engine.sandboxes().is_empty());
}

#[tokio::test]
async fn one_child_tells_what_is_hot_and_later_ones_are_handed_it() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let snapshot = house.root().join("snapshots").join(&names(&house.root().join("snapshots"))[0]);
    house.mood("hot-lie");
    let liar = fork_one(&engine).await;
    assert!(!was_told(&engine, &liar).await);
    // What was a lie is nowhere, and the next child is asked.
    assert!(!snapshot.join("hot").exists());
    let first = fork_one(&engine).await;
    assert!(!was_told(&engine, &first).await);
    eventually_told(&engine).await;
    assert!(snapshot.join("hot").exists());
    drop(engine);

    let engine = house.open(bounds()).await;
    let later = fork_one(&engine).await;
    assert!(was_told(&engine, &later).await, "it outlives the engine");
}

async fn was_told(engine: &Engine, id: &SandboxId) -> bool {
    String::from_utf8(engine.monitor_log(id).await.unwrap()).unwrap().contains("told what is hot")
}

/// Nobody waits for what a child tells.
async fn eventually_told(engine: &Engine) {
    for _ in 0..100 {
        let id = fork_one(engine).await;
        if was_told(engine, &id).await {
            return;
        }
    }
    panic!("no child was told");
}
