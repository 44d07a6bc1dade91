use std::time::Duration;

use forkd_engine::{Bounds, Engine};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::RemoveSnapshot;
use futures::future::join_all;
use tokio::sync::mpsc;

use crate::support::*;

fn warmed(tag: &str, code: &str) -> forkd_protocol::rest::CreateSnapshot {
    forkd_protocol::rest::CreateSnapshot {
        warm: Some(code.to_owned()),
        warm_timeout_secs: 1,
        ..snapshot(tag)
    }
}

fn assert_nothing_left(house: &House, engine: &Engine) {
    assert!(house.run_folders().is_empty() && engine.sandboxes().is_empty());
    assert!(names(&house.root().join("staging")).is_empty());
    assert!(names(&house.root().join("layers")).is_empty());
}

#[tokio::test]
async fn a_parent_is_booted_warmed_written_and_gone() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    let (sender, mut lines) = mpsc::channel(100);
    let info = engine.create_snapshot(warmed("t", "import numpy"), sender).await.unwrap();
    assert_eq!((info.tag.as_str(), info.status.as_str(), info.bootable), ("t", "ready", true));
    assert_eq!((info.image.as_str(), info.kernel.as_str(), info.memory_mib), ("py", "6.12", 128));
    let mut said = Vec::new();
    while let Some(line) = lines.recv().await {
        said.push(line);
    }
    assert!(said.len() >= 5 && said.last().unwrap().contains("ready"), "{said:?}");
    assert!(house.run_folders().is_empty() && engine.sandboxes().is_empty());
    assert_eq!(engine.snapshots().await.unwrap(), [info]);
    engine.remove_snapshot("t".parse().unwrap(), RemoveSnapshot::default()).await.unwrap();
    assert_eq!(engine.fork(children(1)).await.unwrap_err().class(), ErrorClass::NotFound);
}

#[tokio::test]
async fn of_two_for_one_tag_one_wins() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    let asked = snapshot("t");
    let results = join_all((0..6).map(|_| create(&engine, &asked))).await;
    assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 1);
    for lost in results.iter().filter_map(|r| r.as_ref().err()) {
        assert_eq!((lost.class(), lost.code()), (ErrorClass::Conflict, "tag_taken"), "{lost}");
    }
    assert_eq!(create(&engine, &asked).await.unwrap_err().code(), "tag_taken");
    fork_one(&engine).await;
}

#[tokio::test]
async fn whatever_fails_leaves_nothing_and_the_tag_is_free() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    for (mood, code, says) in [
        ("refuse", "host_unfit", "lacks what the guest was shown"),
        ("die", "internal", "dying of a mood"),
        ("unbuildable", "bad_request", "the ramdisk does not fit"),
        ("full", "no_space", "no space left"),
        ("other-agent", "version_mismatch", "make the snapshot again"),
        ("other-version", "version_mismatch", "install both from one release"),
        ("no-freeze", "guest_did_not_freeze", "still running"),
        ("refuse-snapshot", "host_unfit", "cannot be written"),
    ] {
        house.mood(mood);
        let body = create(&engine, &snapshot("t")).await.unwrap_err().body();
        assert!(body.error.contains(says), "{mood}: {body:?}");
        assert_eq!(body.code, code, "{mood}: {body:?}");
        assert_nothing_left(&house, &engine);
    }
    create(&engine, &snapshot("t")).await.unwrap();
}

#[tokio::test]
async fn a_warm_up_that_fails_shows_its_error() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    for (code, kind, class, says) in [
        (
            "raise",
            "warm_up_failed",
            ErrorClass::Caller,
            "ModuleNotFoundError: No module named 'nope'\nTraceback",
        ),
        ("loop", "warm_up_timeout", ErrorClass::Caller, "did not end within 1 s"),
        ("stall", "guest_timeout", ErrorClass::GuestFault, "did not answer"),
        ("stop", "parent_failed", ErrorClass::GuestFault, "stopped itself"),
    ] {
        let e = create(&engine, &warmed("t", code)).await.unwrap_err();
        assert_eq!((e.code(), e.class()), (kind, class), "{e}");
        assert!(e.body().error.contains(says), "{:?}", e.body());
        assert_nothing_left(&house, &engine);
    }
}

#[tokio::test]
async fn a_parent_that_never_answers_is_given_up() {
    let house = House::new();
    drop(house.with_image(bounds()).await);
    let engine = house.open(Bounds { boot: Duration::from_millis(300), ..bounds() }).await;
    house.mood("mute");
    let e = create(&engine, &snapshot("t")).await.unwrap_err();
    assert_eq!(e.code(), "parent_failed", "{e}");
    eventually(|| house.run_folders().is_empty()).await;
    assert_nothing_left(&house, &engine);
}

#[tokio::test]
async fn a_snapshot_that_is_given_up_leaves_nothing() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    house.mood("stall-at-freeze");
    let making = tokio::spawn({
        let engine = engine.clone();
        async move { create(&engine, &snapshot("t")).await }
    });
    eventually(|| !house.run_folders().is_empty()).await;
    making.abort();
    assert!(making.await.unwrap_err().is_cancelled());
    eventually(|| house.run_folders().is_empty()).await;
    assert_nothing_left(&house, &engine);
    // Where it was booting, the mood may still be there for the next.
    let _ = std::fs::remove_file(house.libexec().join("moods/stall-at-freeze"));
    create(&engine, &snapshot("t")).await.unwrap();
}

#[tokio::test]
async fn wrong_requests_touch_nothing() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    let base = snapshot("t");
    let wrong = [
        forkd_protocol::rest::CreateSnapshot { tag: "../x".to_owned(), ..base.clone() },
        forkd_protocol::rest::CreateSnapshot { image: "/etc/passwd".to_owned(), ..base.clone() },
        forkd_protocol::rest::CreateSnapshot { image: String::new(), ..base.clone() },
        forkd_protocol::rest::CreateSnapshot { vcpus: 9, ..base.clone() },
        forkd_protocol::rest::CreateSnapshot { memory_mib: 64, ..base.clone() },
        forkd_protocol::rest::CreateSnapshot { kernel: Some("..".to_owned()), ..base.clone() },
    ];
    for asked in wrong {
        assert_eq!(create(&engine, &asked).await.unwrap_err().class(), ErrorClass::Caller, "{asked:?}");
    }
    let unknown = forkd_protocol::rest::CreateSnapshot { image: "nope".to_owned(), ..base };
    assert_eq!(create(&engine, &unknown).await.unwrap_err().class(), ErrorClass::NotFound);
    assert_nothing_left(&house, &engine);
}

#[tokio::test]
async fn an_upload_that_breaks_off_leaves_nothing() {
    use std::io::{self, Read};
    struct Broken(u32);
    impl Read for Broken {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0 += 1;
            if self.0 > 3 { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(buf.len()) }
        }
    }
    let house = House::new();
    let engine = house.open(bounds()).await;
    let e = engine.put_image("a".parse().unwrap(), String::new(), Broken(0)).await.unwrap_err();
    assert_eq!(e.class(), ErrorClass::Caller, "{e}");
    let e = engine.put_kernel("k".parse().unwrap(), Broken(0)).await.unwrap_err();
    assert_eq!(e.class(), ErrorClass::Caller, "{e}");
    let e = engine.put_kernel("k".parse().unwrap(), io::empty()).await.unwrap_err();
    assert!(e.to_string().contains("vmlinuz is missing"), "{e}");
    assert!(engine.images().await.unwrap().is_empty() && engine.kernels().await.unwrap().is_empty());
    assert!(names(&house.root().join("staging")).is_empty());
}
