use std::fs;
use std::path::Path;

use forkd_engine::Engine;
use forkd_protocol::error::ErrorClass;
use forkd_protocol::names::SandboxId;
use forkd_protocol::rest::{BranchRequest, CreateSandboxes, SecretValue, SecretValues};

use crate::support::*;

const VALUE: &str = "v4lue-that-nobody-else-has";

fn secrets() -> SecretValues {
    [("KEY".to_owned(), SecretValue::Text(VALUE.to_owned()))].into()
}

async fn holder(engine: &Engine) -> SandboxId {
    let asked = CreateSandboxes { secrets: secrets(), ..children(1) };
    id(&engine.fork(asked).await.unwrap()[0])
}

async fn seen(engine: &Engine, id: &SandboxId) -> String {
    exec(engine, id, &["secrets"]).await.unwrap().stdout
}

fn with_secrets(tag: &str) -> BranchRequest {
    BranchRequest { tag: Some(tag.to_owned()), with_secrets: true, ..BranchRequest::default() }
}

fn contains(folder: &Path, what: &[u8]) -> bool {
    fs::read_dir(folder).unwrap().flatten().any(|entry| {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => contains(&path, what),
            kind if kind.is_file() => fs::read(&path).unwrap().windows(what.len()).any(|w| w == what),
            _ => false,
        }
    })
}

#[tokio::test]
async fn a_holder_is_branched_on_purpose_only_and_keeps_its_secrets() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let id = holder(&engine).await;
    let shown = &engine.sandbox(&id).unwrap().settings.secrets;
    assert_eq!((shown[0].name.as_str(), shown[0].held, &shown[0].inherited_from), ("KEY", true, &None));
    assert_eq!(seen(&engine, &id).await, format!("KEY={VALUE}"));

    let of_it =
        CreateSandboxes { snapshot_tag: String::new(), from_sandbox: Some(id.to_string()), ..children(1) };
    for refused in [
        engine.branch(&id, BranchRequest::default()).await.unwrap_err(),
        engine.fork(of_it.clone()).await.unwrap_err(),
        engine.fork_sandbox(&id, 1, 60).await.unwrap_err(),
    ] {
        assert_eq!((refused.code(), refused.class()), ("sandbox_holds_secrets", ErrorClass::Conflict));
        assert!(refused.to_string().contains("--with-secrets") && !refused.to_string().contains(VALUE));
    }
    assert_eq!(seen(&engine, &id).await, format!("KEY={VALUE}"));

    let made = engine.branch(&id, with_secrets("b")).await.unwrap();
    assert_eq!(made.secrets, ["KEY"]);
    assert_eq!(seen(&engine, &id).await, format!("KEY={VALUE}"), "given again");
    // A child of the snapshot may have read it in an earlier life, and has no file.
    let child = CreateSandboxes { snapshot_tag: "b".to_owned(), ..children(1) };
    let child = engine.fork(child).await.unwrap().remove(0);
    let inherited = &child.settings.secrets[0];
    assert_eq!((inherited.inherited_from.as_deref(), inherited.held), (Some("b"), false));
    let child = child.id.parse().unwrap();
    assert_eq!(seen(&engine, &child).await, "");
    assert_eq!(
        engine.branch(&child, BranchRequest::default()).await.unwrap_err().code(),
        "sandbox_holds_secrets"
    );
    engine.branch(&child, with_secrets("c")).await.unwrap();

    let of_it = CreateSandboxes { with_secrets: true, ..of_it };
    let heir = engine.fork(of_it).await.unwrap().remove(0);
    let inherited = &heir.settings.secrets[0];
    assert_eq!((inherited.inherited_from.as_deref(), inherited.held), (Some(id.as_str()), true));
    assert_eq!(seen(&engine, &heir.id.parse().unwrap()).await, format!("KEY={VALUE}"));
    assert!(!contains(&house.root(), VALUE.as_bytes()), "nothing on the disk has it");
    let nobody = engine.fork(CreateSandboxes { with_secrets: true, ..children(1) }).await.unwrap_err();
    assert_eq!(nobody.class(), ErrorClass::Caller);
}

#[tokio::test]
async fn a_pause_takes_them_and_the_same_controller_gives_them_again() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let id = holder(&engine).await;
    engine.pause(&id).await.unwrap();
    engine.resume(&id).await.unwrap();
    assert_eq!(seen(&engine, &id).await, format!("KEY={VALUE}"));
    let refused =
        CreateSandboxes { secrets: [("../x".into(), secrets()["KEY"].clone())].into(), ..children(1) };
    assert_eq!(engine.fork(refused).await.unwrap_err().class(), ErrorClass::Caller);
}

#[tokio::test]
async fn another_controller_does_not_know_them_until_it_is_told() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let (paused, running) = (holder(&engine).await, holder(&engine).await);
    engine.pause(&paused).await.unwrap();
    engine.shutdown();
    drop(engine);
    let engine = house.open(bounds()).await;

    assert_eq!(seen(&engine, &running).await, format!("KEY={VALUE}"), "its guest has it still");
    let refused = engine.branch(&running, with_secrets("b")).await.unwrap_err();
    assert_eq!((refused.code(), refused.class()), ("secrets_not_held", ErrorClass::Conflict));
    assert!(refused.to_string().contains(&format!("forkd secret {running}")), "{refused}");

    let resumed = engine.resume(&paused).await.unwrap();
    assert!(!resumed.settings.secrets[0].held);
    assert_eq!(seen(&engine, &paused).await, "");
    for id in [&paused, &running] {
        assert!(engine.give_secrets(id, secrets()).await.unwrap().settings.secrets[0].held);
        assert_eq!(seen(&engine, id).await, format!("KEY={VALUE}"));
    }
    engine.branch(&running, with_secrets("b")).await.unwrap();
    assert_eq!(seen(&engine, &running).await, format!("KEY={VALUE}"));
    assert!(!contains(&house.root(), VALUE.as_bytes()));
}
