//! Sandboxes' networks with real namespaces, real rules and real connections.

mod egress;
mod life;
mod names;
mod world;

use forkd_protocol::rest::NetworkPolicy;
use serde_json::Value;

fn policy(written: Value) -> NetworkPolicy {
    serde_json::from_value(written).unwrap()
}
