//! The agent's HTTP server.
//!
//! ```text
//! server   connections, on vsock or, for tests, on TCP    route   which handler answers
//! body     bodies in and out                               verbs   forkd's own verbs
//! ```

mod body;
mod route;
mod server;
mod verbs;

pub(crate) use body::{Body, Response, read_limited};
pub(crate) use server::{Listener, serve};
