//! The engine against monitors without machines (`examples/fake_monitor`): real processes, sockets and
//! descriptors, no KVM.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails panics")]

mod adopt;
mod branch;
mod fork;
mod guest;
mod idle;
mod jail;
mod network;
mod pause;
mod pool;
mod publish;
mod refresh;
mod room;
mod secrets;
mod snapshot;
#[path = "../support/mod.rs"]
mod support;
