//! Networks of sandboxes, on a host of the test's own: real namespaces, taps, veths and rules, and monitors that do
//! nothing with them. What leaves is tested where the rules are made; this is about who has which network when.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails panics")]

mod support;

use std::fs::{self, File};
use std::thread;
use std::time::Duration;

use forkd_engine::{Engine, EngineConfig, NetworkConfig};
use forkd_protocol::rest::{BranchRequest, CreateSandboxes, Egress, SandboxInfo};
use forkd_testkit::guard;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use tokio::runtime::Runtime;

use support::*;

/// A controller's life, which ends as that of a killed process.
struct Life {
    runtime: Runtime,
    engine: Engine,
}

impl Life {
    fn begin(house: &House, capacity: u32, waiting: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let network = Some(NetworkConfig { capacity, ..NetworkConfig::default() });
        let config = EngineConfig { network, waiting, ..house.config(bounds()) };
        let engine = runtime.block_on(Engine::open(config)).unwrap();
        Self { runtime, engine }
    }

    fn furnish(self, house: &House) -> Self {
        self.runtime.block_on(async {
            house.furnish(&self.engine).await;
            create(&self.engine, &snapshot("t")).await.unwrap();
        });
        self
    }

    fn fork(&self, asked: serde_json::Value) -> Result<Vec<SandboxInfo>, forkd_engine::EngineError> {
        let asked: CreateSandboxes = serde_json::from_value(asked).unwrap();
        self.runtime.block_on(self.engine.fork(asked))
    }

    fn kill_all(&self) {
        let all = self.engine.sandboxes();
        all.iter().for_each(|info| self.runtime.block_on(self.engine.kill(&id(info))).unwrap());
    }

    fn end(self) {
        let Self { runtime, engine } = self;
        runtime.shutdown_timeout(Duration::from_secs(20));
        drop(engine);
    }
}

/// Runs a test on a host of its own, where that can be made.
fn on_a_host(test: impl FnOnce() + Send) {
    let root = rustix::process::geteuid().is_root();
    let tun = File::options().read(true).write(true).open("/dev/net/tun").map(drop);
    let able = if root { tun.map_err(|e| e.to_string()) } else { Err("not root".to_owned()) };
    if !guard::met("tun", able) {
        return;
    }
    thread::scope(|scope| {
        let ran = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                .unwrap();
            mount(Some("run"), "/run", Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            test();
        });
        if let Err(panic) = ran.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Network namespaces, and the host's ends of veths.
fn there() -> (Vec<String>, usize) {
    let veths = fs::read_to_string("/proc/thread-self/net/dev").unwrap().matches("fkd-").count();
    let names = if fs::exists("/run/netns").unwrap() { names("/run/netns".as_ref()) } else { Vec::new() };
    (names, veths)
}

fn becomes(expected: usize) {
    for _ in 0..2000 {
        let (names, veths) = there();
        if (names.len(), veths) == (expected, expected) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{:?}, not {expected}", there());
}

#[test]
fn each_has_its_own_from_fork_to_kill_and_nothing_is_left() {
    on_a_host(|| {
        let house = House::new();
        let life = Life::begin(&house, 3, 0).furnish(&house);
        becomes(0);
        let two = life.fork(json!({"snapshot_tag": "t", "n": 2})).unwrap();
        let mut netns: Vec<_> = two.iter().map(|info| info.netns.clone().unwrap()).collect();
        netns.sort();
        assert_eq!(there(), (netns, 2));
        assert!(two.iter().all(|info| info.network == Some(Egress::Allow.into())));
        let refused = life.fork(json!({"snapshot_tag": "t", "n": 2, "network": "deny"})).unwrap_err();
        assert_eq!(refused.code(), "no_network_slot", "{refused}");
        becomes(2);
        assert_eq!(life.engine.sandboxes().len(), 2);
        life.runtime.block_on(life.engine.kill(&id(&two[0]))).unwrap();
        becomes(1);
        // One that ends by itself has none any more, though it is listed.
        kill_and_wait(two[1].pid.unwrap());
        becomes(0);
        life.kill_all();
        life.engine.shutdown();
        let tables = std::process::Command::new("nft")
            .args(["list", "tables"])
            .env("PATH", "/usr/sbin:/sbin")
            .output();
        assert_eq!(String::from_utf8(tables.unwrap().stdout).unwrap(), "");
    });
}

#[test]
fn they_wait_for_sandboxes_and_are_used_again() {
    on_a_host(|| {
        let house = House::new();
        let life = Life::begin(&house, 100, 1).furnish(&house);
        becomes(2);
        let before = there().0;
        let one = life.fork(json!({"snapshot_tag": "t"})).unwrap().remove(0);
        assert!(before.contains(one.netns.as_ref().unwrap()), "one that waited");
        becomes(3);
        life.kill_all();
        becomes(2);
        life.end();
        // The next controller removes what waited, and has others wait.
        let life = Life::begin(&house, 100, 1);
        becomes(2);
        life.engine.shutdown();
        becomes(0);
    });
}

#[test]
fn the_next_controller_finds_those_of_its_sandboxes() {
    on_a_host(|| {
        let house = House::new();
        let life = Life::begin(&house, 100, 0).furnish(&house);
        let listed = json!(["203.0.113.0/24", "example.com"]);
        let child = life.fork(json!({"snapshot_tag": "t", "network": listed})).unwrap().remove(0);
        life.fork(json!({"snapshot_tag": "t", "n": 2})).unwrap();
        becomes(3);
        let killed = life.engine.sandboxes().into_iter().find(|info| info.id != child.id).unwrap();
        life.end();
        kill_and_wait(killed.pid.unwrap());
        let life = Life::begin(&house, 100, 0);
        becomes(2);
        let found = life.engine.sandbox(&id(&child)).unwrap();
        assert_eq!(found, child);
        let denied =
            life.runtime.block_on(life.engine.set_network(&id(&child), Egress::Deny.into())).unwrap();
        assert_eq!(denied.network, Some(Egress::Deny.into()));
        assert_eq!(life.engine.sandbox(&id(&child)).unwrap().network, denied.network);
        let stats = life.runtime.block_on(life.engine.stats(&id(&child))).unwrap();
        // The kernel's own greetings, at most.
        assert!(stats.net.unwrap().tx_bytes < 4096, "{stats:?}");
        life.kill_all();
        becomes(0);
    });
}

#[test]
fn a_paused_one_has_none_and_branches_inherit_the_policy() {
    on_a_host(|| {
        let house = House::new();
        let life = Life::begin(&house, 100, 0).furnish(&house);
        let child = life.fork(json!({"snapshot_tag": "t", "network": "deny"})).unwrap().remove(0);
        let branch = BranchRequest { tag: Some("b".to_owned()), ..BranchRequest::default() };
        life.runtime.block_on(life.engine.branch(&id(&child), branch)).unwrap();
        let later = life.fork(json!({"snapshot_tag": "b"})).unwrap().remove(0);
        assert_eq!(later.network, Some(Egress::Deny.into()));
        assert!(later.netns.is_some() && later.netns != child.netns);
        becomes(2);
        let paused = life.runtime.block_on(life.engine.pause(&id(&child))).unwrap();
        assert_eq!((paused.netns.as_ref(), paused.network.as_ref()), (None, child.network.as_ref()));
        becomes(1);
        life.runtime.block_on(life.engine.set_network(&id(&child), Egress::Allow.into())).unwrap();
        let resumed = life.runtime.block_on(life.engine.resume(&id(&child))).unwrap();
        assert!(resumed.netns.is_some() && resumed.network == Some(Egress::Allow.into()));
        becomes(2);
        life.end();
        let life = Life::begin(&house, 100, 0);
        assert_eq!(life.engine.sandbox(&id(&child)).unwrap().netns, resumed.netns);
        life.kill_all();
        becomes(0);
    });
}
