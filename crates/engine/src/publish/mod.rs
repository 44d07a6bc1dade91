//! Ports of sandboxes at addresses of the host.
//!
//! A listener is bound before anything of its sandbox is made, so that an address that is taken is said at once; it
//! accepts connections once the sandbox runs, each carried to the guest through its agent, and is closed with the sandbox.
//! Where a port is published is among the sandbox's settings, so that the next controller listens there again.

mod error;
mod listen;

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use forkd_protocol::rest::{MAX_PUBLISHED, Publish, Published};

pub use error::PublishError;
pub(crate) use listen::{Bound, bind, serve, serve_again};

use crate::error::{EngineError, in_range};

/// Addresses of one sandbox that are listened at now.
#[derive(Debug, Default)]
pub(crate) struct Listening(Mutex<Vec<SocketAddr>>);

impl Listening {
    fn begin(&self, at: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(at);
    }

    fn end(&self, at: SocketAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != at);
    }

    /// With what is known of each.
    pub(crate) fn shown(&self, published: &[Publish]) -> Vec<Published> {
        let now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = |port: &Publish| Published { port: *port, listening: now.contains(&port.host) };
        published.iter().map(shown).collect()
    }
}

/// Refuses what makes no sense.
pub(crate) fn check(asked: &[Publish], n: u32) -> Result<(), EngineError> {
    if !asked.is_empty() && n != 1 {
        return Err(PublishError::Many(n).into());
    }
    in_range::<usize>("published ports", asked.len() as u64, 0, MAX_PUBLISHED as u64)?;
    for port in asked {
        in_range::<u16>("the port in the sandbox", u64::from(port.guest), 1, u64::from(u16::MAX))?;
    }
    Ok(())
}
