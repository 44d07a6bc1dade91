//! Messages that cross a process boundary.
//!
//! * [`control`]: engine to monitor, over a Unix socket that also carries descriptors;
//! * [`guest`]: host to agent, HTTP over vsock;
//! * [`rest`]: clients to controller, JSON over HTTP;
//! * [`error`]: what kind of failure an error is;
//! * [`digest`]: what content is called by;
//! * [`names`]: the names people give things, checked once, here.
#![forbid(unsafe_code)]

pub mod control;
pub mod digest;
pub mod error;
pub mod guest;
pub mod names;
pub mod rest;
