use std::collections::BTreeSet;

use forkd_engine::Engine;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{BranchRequest, CreateSandboxes, CreateSnapshot, RefreshSnapshot, SnapshotInfo};
use futures::future::join_all;
use tokio::sync::mpsc;

use crate::support::*;

fn again() -> RefreshSnapshot {
    serde_json::from_value(serde_json::json!({})).unwrap()
}

async fn refresh(
    engine: &Engine,
    tag: &str,
    asked: RefreshSnapshot,
) -> Result<SnapshotInfo, forkd_engine::EngineError> {
    engine.refresh_snapshot(tag.parse().unwrap(), asked, mpsc::channel(100).0).await
}

#[tokio::test]
async fn it_is_made_again_of_what_it_records_and_takes_the_tag_when_it_is_ready() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    let asked = CreateSnapshot { warm: Some("import numpy".to_owned()), ..snapshot("t") };
    let old = create(&engine, &asked).await.unwrap();
    let child = fork_one(&engine).await;
    engine.branch(&child, BranchRequest { tag: Some("b".to_owned()), ..Default::default() }).await.unwrap();
    // Another image of the same name changes nothing.
    let disk = std::io::Cursor::new(vec![6u8; 64 * 4096]);
    engine.put_image("py".parse().unwrap(), "another".to_owned(), disk).await.unwrap();

    let new = refresh(&engine, "t", again()).await.unwrap();
    assert_ne!(new.id, old.id);
    assert_eq!((&new.tag, &new.image_hash, new.memory_mib), (&old.tag, &old.image_hash, old.memory_mib));
    assert_eq!(engine.snapshot("t".parse().unwrap()).await.unwrap().id, new.id);
    let folders: BTreeSet<String> = names(&house.root().join("snapshots")).into_iter().collect();
    assert!(folders.contains(&new.id) && !folders.contains(&old.id));
    // What came from the old one is whole.
    assert_eq!(engine.verify_snapshots(Default::default()).await.unwrap().damage, []);
    let of_branch = CreateSandboxes { snapshot_tag: "b".to_owned(), ..children(1) };
    engine.fork(of_branch).await.unwrap();
    engine.pause(&child).await.unwrap();
    engine.resume(&child).await.unwrap();
    assert_ne!(engine.sandbox(&fork_one(&engine).await).unwrap().snapshot_id, Some(old.id.clone()));

    let beside =
        refresh(&engine, "t", RefreshSnapshot { tag: Some("u".to_owned()), ..again() }).await.unwrap();
    assert_eq!(beside.tag, "u");
    assert_eq!(engine.snapshot("t".parse().unwrap()).await.unwrap().id, new.id);
    let taken = refresh(&engine, "t", RefreshSnapshot { tag: Some("b".to_owned()), ..again() }).await;
    assert_eq!(taken.unwrap_err().code(), "tag_taken");
}

#[tokio::test]
async fn one_that_fails_or_loses_leaves_the_tag_as_it_is() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let old = engine.snapshot("t".parse().unwrap()).await.unwrap();
    for mood in ["refuse", "die", "full", "no-freeze"] {
        house.mood(mood);
        refresh(&engine, "t", again()).await.unwrap_err();
        assert_eq!(engine.snapshots().await.unwrap(), std::slice::from_ref(&old), "{mood}");
        assert!(names(&house.root().join("staging")).is_empty() && house.run_folders().is_empty(), "{mood}");
    }
    let both = join_all([refresh(&engine, "t", again()), refresh(&engine, "t", again())]).await;
    let made = both.iter().filter(|made| made.is_ok()).count();
    for lost in both.iter().filter_map(|made| made.as_ref().err()) {
        assert_eq!(lost.class(), ErrorClass::Conflict, "{lost}");
    }
    assert!(made >= 1 && engine.snapshots().await.unwrap().len() == 1);
    fork_one(&engine).await;
}

#[tokio::test]
async fn what_was_taken_of_a_sandbox_is_refused_with_what_to_do() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let id = fork_one(&engine).await;
    engine.branch(&id, BranchRequest { tag: Some("b".to_owned()), ..Default::default() }).await.unwrap();
    let refused = refresh(&engine, "b", again()).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("not_recorded", ErrorClass::Conflict));
    assert!(refused.to_string().contains("forkd snapshot refresh t"), "{refused}");
    assert_eq!(refresh(&engine, "nope", again()).await.unwrap_err().class(), ErrorClass::NotFound);
}

#[tokio::test]
async fn a_snapshot_of_another_time_is_refused_with_what_to_do() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let info = engine.snapshot("t".parse().unwrap()).await.unwrap();
    let detail = engine.snapshot_detail("t".parse().unwrap()).await.unwrap();
    assert_eq!(detail.state_format, None, "the fake's state is no state");
    let state = house.root().join("snapshots").join(&info.id).join("state");
    let foreign = [&b"FKDSTATE"[..], &99u32.to_le_bytes(), &[0; 60]].concat();
    std::fs::remove_file(&state).unwrap();
    std::fs::write(&state, foreign).unwrap();
    let refused = engine.fork(children(1)).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("version_mismatch", ErrorClass::HostUnfit));
    assert!(refused.to_string().contains("forkd snapshot refresh t"), "{refused}");
    assert!(refused.to_string().contains("version 99"), "{refused}");
    assert_eq!(engine.snapshot_detail("t".parse().unwrap()).await.unwrap().state_format, Some(99));
    assert!(engine.sandboxes().is_empty() && house.run_folders().is_empty());
    refresh(&engine, "t", again()).await.unwrap();
    fork_one(&engine).await;
}
