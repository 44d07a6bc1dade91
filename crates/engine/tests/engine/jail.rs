use forkd_engine::EngineError;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::*;

#[tokio::test]
async fn a_monitor_that_its_filter_killed_is_reported_and_counted_as_such() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let (killed, other) = (engine.fork(children(1)).await.unwrap().remove(0), fork_one(&engine).await);
    // As the kernel does it for a call that the filter does not allow.
    kill_process(Pid::from_raw(killed.pid.unwrap().cast_signed()).unwrap(), Signal::SYS).unwrap();
    let ended = || engine.sandbox(&id(&killed)).unwrap().ended;
    eventually(|| ended().is_some()).await;
    assert!(ended().unwrap().starts_with("killed: seccomp"), "{:?}", ended());
    assert_eq!(engine.killed_by_filter(), 1);
    assert_eq!(engine.sandbox(&other).unwrap().ended, None);
    engine.kill(&other).await.unwrap();
    engine.kill(&id(&killed)).await.unwrap();
}

#[tokio::test]
async fn how_a_monitor_is_jailed_is_told_as_long_as_it_runs() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let forked = engine.fork(children(1)).await.unwrap().remove(0);
    let report = engine.jail(&id(&forked)).await.unwrap();
    assert_eq!((report.id.as_str(), Some(report.pid)), (forked.id.as_str(), forked.pid));
    // Fakes are not jailed at all.
    assert!(!report.ok);
    let wrong: Vec<_> =
        report.checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect();
    for name in ["mnt namespace", "no new privileges", "system calls", "root", "limits"] {
        assert!(wrong.contains(&name), "{name} is not in {wrong:?}");
    }
    engine.kill(&id(&forked)).await.unwrap();
    assert!(matches!(engine.jail(&id(&forked)).await, Err(EngineError::Sandbox(_))));
}
