use forkd_engine::Engine;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{CreateSandboxes, SandboxSettings};
use tokio::net::TcpListener;

use crate::support::*;

fn resting(auto_resume: bool) -> CreateSandboxes {
    let settings = SandboxSettings { idle_timeout_secs: Some(1), auto_resume, ..SandboxSettings::default() };
    CreateSandboxes { settings, ..children(1) }
}

async fn fork(engine: &Engine, asked: CreateSandboxes) -> SandboxId {
    id(&engine.fork(asked).await.unwrap()[0])
}

fn state(engine: &Engine, id: &SandboxId) -> String {
    engine.sandbox(id).unwrap().state
}

#[tokio::test]
async fn what_nobody_uses_is_paused_and_the_next_use_continues_it() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let (woken, left) = (fork(&engine, resting(true)).await, fork(&engine, resting(false)).await);
    for id in [&woken, &left] {
        eventually(|| state(&engine, id) == "paused").await;
    }
    assert_eq!(exec(&engine, &woken, &["a"]).await.unwrap().stdout, "a");
    let refused = exec(&engine, &left, &["a"]).await.unwrap_err();
    assert_eq!(refused.code(), "not_running");
    // It has not been idle since before.
    engine.resume(&left).await.unwrap();
    assert_eq!(exec(&engine, &left, &["a"]).await.unwrap().stdout, "a");
    eventually(|| state(&engine, &left) == "paused").await;
}

#[tokio::test]
async fn an_open_connection_and_what_runs_inside_are_use() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    house.mood("working");
    let working = fork(&engine, resting(true)).await;
    let connected = fork(&engine, resting(true)).await;
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tunnel = engine.open_port(&connected, server.local_addr().unwrap().port()).await.unwrap();
    // Two that are younger come to rest one after the other.
    for _ in 0..2 {
        let idle = fork(&engine, resting(true)).await;
        eventually(|| state(&engine, &idle) == "paused").await;
    }
    assert_eq!(state(&engine, &working), "running");
    assert_eq!(state(&engine, &connected), "running");
    drop(tunnel);
    eventually(|| state(&engine, &connected) == "paused").await;
}
