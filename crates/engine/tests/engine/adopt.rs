use std::fs;
use std::time::Duration;

use forkd_engine::{Engine, EngineError};
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::SandboxInfo;
use rustix::process::Pid;
use tokio::runtime::Runtime;

use crate::support::*;

/// A controller's life: an engine in a runtime of its own, which is torn down as a killed process would be.
struct Life {
    runtime: Runtime,
    engine: Engine,
}

impl Life {
    fn first(house: &House) -> Self {
        let runtime = Runtime::new().unwrap();
        let engine = runtime.block_on(house.furnished(bounds()));
        Self { runtime, engine }
    }

    fn next(house: &House) -> Self {
        let runtime = Runtime::new().unwrap();
        let engine = runtime.block_on(house.open(bounds()));
        Self { runtime, engine }
    }

    fn fork(&self, n: u32) -> Vec<SandboxInfo> {
        self.runtime.block_on(self.engine.fork(children(n))).unwrap()
    }

    fn end(self) {
        let Self { runtime, engine } = self;
        runtime.shutdown_timeout(Duration::from_secs(20));
        drop(engine);
    }
}

#[test]
fn what_runs_is_found_again_and_what_died_is_removed() {
    let house = House::new();
    let life = Life::first(&house);
    let forked = life.fork(3);
    life.end();
    assert!(forked.iter().all(|info| is_running(info.pid.unwrap())), "sandboxes outlive the controller");
    kill_and_wait(forked[1].pid.unwrap());

    let life = Life::next(&house);
    let found = life.engine.sandboxes();
    assert_eq!(found, [forked[0].clone(), forked[2].clone()]);
    assert_eq!(house.run_folders().len(), 2);
    life.runtime.block_on(async {
        for info in &found {
            assert_eq!(exec(&life.engine, &id(info), &["still", "here"]).await.unwrap().stdout, "still here");
        }
        // Adopted ones are watched...
        exec(&life.engine, &id(&found[0]), &["shutdown"]).await.unwrap_err();
        let info = life.engine.sandbox(&id(&found[0])).unwrap();
        assert_eq!(info.ended.as_deref(), Some("the guest shut down"));
        // ... and killed like any other.
        for info in &found {
            life.engine.kill(&id(info)).await.unwrap();
        }
    });
    assert!(life.engine.sandboxes().is_empty() && house.run_folders().is_empty());
}

#[test]
fn a_pid_that_was_given_to_another_is_never_signalled() {
    let house = House::new();
    let life = Life::first(&house);
    let forked = life.fork(1);
    let row = life.engine.store().sandboxes().unwrap().remove(0);
    life.end();
    kill_and_wait(forked[0].pid.unwrap());
    let mut stranger = a_later_process(row.pid_start_ticks.unwrap());
    {
        let store = forkd_store::Store::open(&house.root()).unwrap();
        store.put_sandbox(&forkd_store::SandboxRow { pid: Some(stranger.id()), ..row }).unwrap();
    }
    let life = Life::next(&house);
    assert!(life.engine.sandboxes().is_empty() && house.run_folders().is_empty());
    assert!(is_running(stranger.id()));
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// A process that started in a later clock tick than `ticks`: all of this test may pass within one.
fn a_later_process(ticks: u64) -> std::process::Child {
    loop {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        if forkd_host::process::Process::find(child.id(), ticks).unwrap().is_none() {
            return child;
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn a_monitor_without_a_row_is_ended() {
    let house = House::new();
    let life = Life::first(&house);
    let forked = life.fork(2);
    for info in &forked {
        life.engine.store().remove_sandbox(&id(info)).unwrap();
    }
    life.end();
    // Killed before the process was noted: only its socket leads to it.
    fs::remove_file(house.root().join("run").join(&forked[0].id).join("monitor.pid")).unwrap();
    let stray: SandboxId = "sb-1-1".parse().unwrap();
    fs::create_dir(house.root().join("run").join(stray.as_str())).unwrap();
    let life = Life::next(&house);
    assert!(life.engine.sandboxes().is_empty() && house.run_folders().is_empty());
    life.runtime.block_on(eventually(|| forked.iter().all(|info| !is_running(info.pid.unwrap()))));
    for info in &forked {
        let pid = Pid::from_raw(info.pid.unwrap().cast_signed()).unwrap();
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
}

#[test]
fn one_store_has_one_engine() {
    let house = House::new();
    let life = Life::first(&house);
    let second = life.runtime.block_on(Engine::open(house.config(bounds())));
    assert!(matches!(&second, Err(e @ EngineError::Store(_)) if e.code() == "store_in_use"), "{second:?}");
}

#[test]
fn a_sandbox_of_another_forkd_is_left_alone_and_the_error_says_what_to_do() {
    let house = House::new();
    let life = Life::first(&house);
    house.mood("other-version-once-running");
    let pid = life.fork(1)[0].pid.unwrap();
    life.end();
    let runtime = Runtime::new().unwrap();
    let refused = runtime.block_on(Engine::open(house.config(bounds()))).unwrap_err();
    assert_eq!(refused.code(), "version_mismatch", "{refused}");
    assert!(refused.to_string().contains("the forkd that started it"), "{refused}");
    assert!(is_running(pid) && house.run_folders().len() == 1);
}

#[test]
fn a_root_too_deep_for_sockets_is_refused_at_once() {
    let house = House::new();
    let runtime = Runtime::new().unwrap();
    let mut config = house.config(bounds());
    config.root = config.root.join("d".repeat(100));
    let refused = runtime.block_on(Engine::open(config)).unwrap_err();
    assert!(refused.to_string().contains("too long"), "{refused}");
    assert!(!house.root().exists());
}

#[test]
fn letting_go_leaves_sandboxes_running() {
    let house = House::new();
    let life = Life::first(&house);
    let forked = life.fork(1);
    life.engine.shutdown();
    assert!(life.runtime.block_on(life.engine.fork(children(1))).is_err());
    life.end();
    assert!(is_running(forked[0].pid.unwrap()));
    let life = Life::next(&house);
    assert_eq!(life.engine.sandboxes(), forked);
    life.runtime.block_on(life.engine.kill(&id(&forked[0]))).unwrap();
}
