//! The product: sandbox life, fork policy, snapshots. No HTTP, no CLI.
//!
//! ```text
//!            Engine (facade)                 one method per verb, nothing else
//!   fork ──────┬────── snapshot ── adopt     policy: what happens in which order, what is undone
//!   sandbox: one task per life               the only writer of a sandbox's state
//!   monitor: one process per machine         started, asked, ended, cleaned up after
//!   guest: HTTP to the agent over vsock      bounded in size and time: its answers are hostile
//! ```
//!
//! The engine never sees KVM or guest memory: it speaks to monitors through `forkd_protocol::control`, to
//! agents through `forkd_protocol::guest`, and hands descriptors from the store to the former.

#![forbid(unsafe_code)]

// The support of the tests outside names this crate.
#[cfg(test)]
extern crate self as forkd_engine;

mod admission;
mod adopt;
mod artifacts;
mod branch;
mod bundles;
mod chains;
mod config;
#[cfg(test)]
mod crash_tests;
mod engine;
mod error;
mod events;
mod fault;
mod figures;
mod fork;
mod guest;
mod host_counts;
mod identity;
mod ids;
mod jail;
mod limits;
mod monitor;
mod network;
mod pause;
mod ports;
mod publish;
mod refill;
mod sandbox;
mod secrets;
mod settings;
mod snapshot;
mod stats;

pub use admission::{Admission, AdmissionError};
pub use branch::BranchError;
pub use config::{Bounds, ConfigError, DEFAULT_WAITING, EngineConfig, UserRange};
pub use engine::Engine;
pub use error::{EngineError, OpenError, RequestError};
pub use events::KEPT_EVENTS;
pub use fork::{ChildError, ForkError};
pub use guest::{Body, BoxError, GuestError, Streamed, Tunnel, drop_hop_headers};
pub use monitor::MonitorError;
pub use network::{NetworkConfig, NetworkError};
pub use pause::PauseError;
pub use publish::PublishError;
pub use sandbox::SandboxError;
pub use secrets::SecretError;
pub use settings::{Access, Connected, Shape};
pub use snapshot::SnapshotError;
