//! Where there are no networks.

use forkd_engine::{Engine, EngineError};
use forkd_protocol::error::ErrorClass;
use forkd_protocol::rest::{BranchRequest, CreateSandboxes, Egress, NetworkPolicy, SandboxInfo};
use serde_json::{Value, json};

use crate::support::*;

fn policy(value: Value) -> NetworkPolicy {
    serde_json::from_value(value).unwrap()
}

async fn fork(engine: &Engine, tag: &str, network: Option<Value>) -> Result<SandboxInfo, EngineError> {
    let network = network.map(policy);
    let asked = CreateSandboxes { snapshot_tag: tag.to_owned(), network, ..children(1) };
    Ok(engine.fork(asked).await?.remove(0))
}

#[tokio::test]
async fn what_was_asked_for_is_refused_and_what_nobody_asked_for_is_left_out() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let asked = engine.snapshot("t".parse().unwrap()).await.unwrap().network;
    assert_eq!(asked, Some(Egress::Allow.into()), "what its children have elsewhere");
    for (network, class, code) in [
        (json!("allow"), ErrorClass::HostUnfit, "no_network"),
        (json!(["203.0.113.1"]), ErrorClass::HostUnfit, "no_network"),
        (json!(["127.0.0.1"]), ErrorClass::Caller, "bad_network_policy"),
    ] {
        let refused = fork(&engine, "t", Some(network)).await.unwrap_err();
        assert_eq!((refused.class(), refused.code()), (class, code), "{refused}");
    }
    assert_eq!(house.run_folders(), Vec::<String>::new());
    // Nothing leaves where there is no network.
    for network in [None, Some(json!("deny")), Some(json!("none"))] {
        let child = fork(&engine, "t", network).await.unwrap();
        assert_eq!((child.netns, child.network), (None, Some(Egress::None.into())));
    }
}

#[tokio::test]
async fn one_without_a_network_stays_without() {
    let house = House::new();
    let engine = house.furnished(bounds()).await;
    let id = id(&fork(&engine, "t", None).await.unwrap());
    let refused = engine.set_network(&id, policy(json!("allow"))).await.unwrap_err();
    assert_eq!((refused.class(), refused.code()), (ErrorClass::Conflict, "without_network"));
    assert_eq!(
        engine.set_network(&id, policy(json!("deny"))).await.unwrap().network,
        Some(Egress::None.into())
    );
    engine
        .branch(&id, BranchRequest { tag: Some("b".to_owned()), ..BranchRequest::default() })
        .await
        .unwrap();
    assert_eq!(engine.snapshot("b".parse().unwrap()).await.unwrap().network, Some(Egress::None.into()));
}

#[tokio::test]
async fn a_warm_up_that_needs_a_network_is_refused_without_one() {
    let house = House::new();
    let engine = house.with_image(bounds()).await;
    let mut asked = snapshot("t");
    asked.network = Some(Egress::Allow.into());
    assert_eq!(create(&engine, &asked).await.unwrap_err().code(), "no_network");
    assert!(house.run_folders().is_empty() && engine.snapshots().await.unwrap().is_empty());
    asked.network = Some(Egress::Deny.into());
    assert_eq!(create(&engine, &asked).await.unwrap().network, Some(Egress::Deny.into()));
}
