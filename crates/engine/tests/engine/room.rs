use std::io::Cursor;

use forkd_engine::{Engine, EngineError};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{BranchMode, BranchRequest, CompactSnapshot, RemoveSnapshot};
use forkd_testkit::room::SmallDisk;

use crate::support::*;

const VERBS: [&str; 7] = ["snapshot", "full", "diff", "live", "live, not waited for", "compact", "image"];

async fn attempt(engine: &Engine, source: &SandboxId, verb: &str) -> Result<(), EngineError> {
    let branch =
        |mode| BranchRequest { tag: Some("new".into()), mode: Some(mode), ..BranchRequest::default() };
    let asked = match verb {
        "snapshot" => return create(engine, &snapshot("new")).await.map(drop),
        "compact" => return compact(engine).await,
        "image" => {
            let disk = Cursor::new(vec![6u8; 8 << 20]);
            return engine.put_image("new".parse().unwrap(), "a test".to_owned(), disk).await.map(drop);
        }
        "full" => branch(BranchMode::Full),
        "diff" => branch(BranchMode::Diff),
        "live" => branch(BranchMode::Live),
        _ => BranchRequest { wait: Some(false), ..branch(BranchMode::Live) },
    };
    engine.branch(source, asked).await?;
    settled(engine).await
}

/// What became of a branch that nobody waits for.
async fn settled(engine: &Engine) -> Result<(), EngineError> {
    loop {
        let info = engine.snapshot("new".parse().unwrap()).await?;
        match info.status.as_str() {
            "writing" => tokio::task::yield_now().await,
            "failed" => {
                assert!(info.warning.is_some_and(|why| why.contains("ENOSPC")));
                engine.remove_snapshot("new".parse().unwrap(), RemoveSnapshot::default()).await?;
                return Err(forkd_store::StoreError::full("/".into(), rustix::io::Errno::NOSPC.into()).into());
            }
            _ => return Ok(()),
        }
    }
}

async fn compact(engine: &Engine) -> Result<(), EngineError> {
    let asked = CompactSnapshot { to: "new".to_owned() };
    engine.compact_snapshot("chain".parse().unwrap(), asked).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_fails_what_needs_room_and_nothing_that_runs() {
    let Some(disk) = SmallDisk::mount(64) else { return };
    let house = House::on(disk.path());
    let engine = house.furnished(bounds()).await;
    let source = fork_one(&engine).await;
    let chain = BranchRequest { tag: Some("chain".into()), ..BranchRequest::default() };
    engine.branch(&source, chain).await.unwrap();
    for verb in VERBS {
        // A child tells of its hot pages beside all this: what that gives back is room, too.
        let nothing_beside = || names(&house.root().join("staging")).is_empty();
        eventually(nothing_beside).await;
        let before = engine.snapshots().await.unwrap();
        let ballast = disk.fill_but(0).unwrap();
        let error = attempt(&engine, &source, verb).await.unwrap_err();
        assert_eq!((error.class(), error.code()), (ErrorClass::Exhausted, "no_space"), "{verb}: {error:?}");
        let said = error.body().error;
        assert!(said.contains("are free"), "{verb}: {said}");
        let told = exec(&engine, &source, &["frozen"]).await.unwrap();
        assert_eq!(told.stdout, "false", "{verb}: the sandbox goes on");
        drop(ballast);
        assert_eq!(engine.snapshots().await.unwrap(), before, "{verb}");
        eventually(nothing_beside).await;
        assert!(engine.store().gc(true).unwrap().items.is_empty(), "{verb}");
        attempt(&engine, &source, verb).await.unwrap_or_else(|e| panic!("{verb}, with room: {e}"));
        assert!(engine.store().verify(None, false).unwrap().damage.is_empty(), "{verb}");
        // An image has no tag.
        let _ = engine.remove_snapshot("new".parse().unwrap(), RemoveSnapshot::default()).await;
    }
    assert!(engine.store().image(&"new".parse().unwrap()).is_ok());
}
