use std::collections::HashSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use forkd_engine::{Engine, EngineConfig};

use crate::support::*;

fn config(house: &House, waiting: usize) -> EngineConfig {
    EngineConfig { waiting, ..house.config(bounds()) }
}

/// An engine with a snapshot whose pool of `waiting` is full.
async fn full(house: &House, waiting: usize) -> Engine {
    house.furnished(bounds()).await.shutdown();
    let engine = Engine::open(config(house, waiting)).await.unwrap();
    eventually(|| house.waiting().len() == waiting).await;
    engine
}

#[tokio::test]
async fn forks_take_what_waits_and_it_is_filled_again() {
    let house = House::new();
    let engine = full(&house, 3).await;
    let ahead: HashSet<u32> = house.waiting().into_iter().collect();
    // More than wait: the rest start their own.
    let forked = engine.fork(children(5)).await.unwrap();
    let taken: HashSet<u32> = forked.iter().map(|info| info.pid.unwrap()).collect();
    assert!(ahead.is_subset(&taken) && taken.len() == 5);
    for info in &forked {
        assert_eq!(exec(&engine, &id(info), &["hello"]).await.unwrap().stdout, "hello");
    }
    eventually(|| house.waiting().len() == 3).await;
    assert_eq!(engine.sandboxes(), forked, "what waits is no sandbox");
    for info in &forked {
        engine.kill(&id(info)).await.unwrap();
    }
    assert_eq!(house.run_folders().len(), 3);
    engine.shutdown();
    assert!(house.run_folders().is_empty(), "they end with the engine");
}

#[tokio::test]
async fn one_that_died_waiting_is_passed_over() {
    let house = House::new();
    let engine = full(&house, 2).await;
    for pid in house.waiting() {
        kill_and_wait(pid);
    }
    let forked = fork_one(&engine).await;
    eventually(|| house.run_folders().len() == 3).await;
    engine.kill(&forked).await.unwrap();
    engine.shutdown();
    eventually(|| house.run_folders().is_empty()).await;
}

#[tokio::test]
async fn one_of_a_program_that_was_replaced_is_passed_over() {
    let house = House::new();
    let engine = full(&house, 2).await;
    let old: HashSet<u32> = house.waiting().into_iter().collect();
    let program = house.libexec().join("forkd-vmm");
    let new = house.libexec().join("new");
    fs::copy(&program, &new).unwrap();
    fs::rename(&new, &program).unwrap();
    let forked = engine.fork(children(1)).await.unwrap().remove(0);
    assert!(!old.contains(&forked.pid.unwrap()));
    eventually(|| old.iter().all(|&pid| !is_running(pid))).await;
    engine.kill(&id(&forked)).await.unwrap();
    engine.shutdown();
    eventually(|| house.run_folders().is_empty()).await;
}

#[tokio::test]
async fn what_a_killed_controller_left_waiting_is_ended() {
    let house = House::new();
    house.furnished(bounds()).await.shutdown();
    let folder = house.root().join("run/wm-1-1");
    fs::create_dir(&folder).unwrap();
    let listener = UnixListener::bind(folder.join("control.sock")).unwrap();
    let mut left = Command::new(house.libexec().join("forkd-vmm"))
        .stdin(Stdio::from(OwnedFd::from(listener)))
        .spawn()
        .unwrap();
    let engine = Engine::open(config(&house, 1)).await.unwrap();
    assert!(!folder.exists());
    assert!(left.wait().unwrap().success(), "it was told to stop");
    eventually(|| house.waiting().len() == 1).await;
    engine.shutdown();
}
