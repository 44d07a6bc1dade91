//! Sandboxes: one task per life is the only writer of its state.
//!
//! [`state`] decides, as a pure function, what an event means in a state. [`task`] carries it out, with [`errand`] for what takes long. [`registry`]
//! is how everybody else finds a sandbox: its mailbox, a view of its state, and its agent. What is in the
//! middle of being born is there too, so that it can be seen and killed.

mod errand;
mod error;
mod registry;
mod state;
mod task;
mod turns;

pub(crate) use errand::Errand;
pub use error::SandboxError;
pub(crate) use registry::{Handle, Registry, View, removed_or_ended};
pub(crate) use state::Life;
pub(crate) use task::{Body, Born, Command, Surroundings, Task, span};
pub(crate) use turns::Turns;
