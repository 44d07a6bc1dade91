//! The protocol of forkd's published Python client: a line of JSON to the address of a sandbox, and one back.
//!
//! Such a client asks no API. It connects to a sandbox's `guest_addr`, sends what it wants of the agent, closes its side,
//! and reads until the end. The protocol knows no tokens, so there are addresses only while the API demands none; what
//! comes by them is noted in the audit log as everything else is.

mod action;
mod answer;
mod open;
mod ports;

pub use action::{Action, Outcome};
pub use answer::answer;
pub(crate) use open::Lines;
pub use ports::{GuestPorts, GuestPortsParseError};
