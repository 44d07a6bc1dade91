//! The monitor: one process that builds or restores one machine, runs it and writes it out.
//!
//! It is handed open descriptors over its control socket and opens nothing by path afterwards, so that it can
//! live in an empty root. It knows nothing of tags, stores or REST.
//!
//! ```text
//!  engine ──control socket──▶ monitor ──▶ machine ──▶ vcpus (one thread each) ──▶ KVM
//!                                │            └──────▶ devices ◀── exits, doorbells
//!                                └── one epoll loop for control and devices
//! ```

#![deny(unsafe_code)]

pub mod acpi;
pub mod boot;
pub mod devices;
pub mod error;
mod guard;
pub mod handed;
mod hot;
#[expect(unsafe_code, reason = "giving rights up is asking the kernel, process by process")]
pub mod jail;
pub mod layout;
mod line;
pub mod machine;
pub mod monitor;
pub mod place;
pub mod priority;
mod snapshot;
pub mod state;
pub mod statefile;
pub mod template;
pub mod vcpus;
mod watch;
#[expect(unsafe_code, reason = "fork(2) and what the copy does before it is a program of its own")]
pub mod writer;

pub use error::MonitorError;
pub use machine::{Host, HostFiles};
pub use monitor::Monitor;
