//! The socket device: host programs reach ports of the guest through one Unix socket.
//!
//! ```text
//!  host client ──connect──▶ Unix socket
//!              ──"CONNECT 52\n"──▶ handshake     REQUEST ──▶ guest port 52
//!              ◀──"OK 1073741824\n"──            ◀── RESPONSE
//!              ◀═══════════ bytes ═══════════▶   RW, both ways, as far as the receiver's credit goes
//! ```
//!
//! Only the host opens connections; a guest's attempt is answered with a reset. Connections are not part
//! of a snapshot: a restored guest is told so by a TRANSPORT_RESET event, and until its driver has put
//! that event's buffer back (its work item has then reset every connected socket) new host clients wait in
//! the listener's backlog. A machine that is only paused keeps its connections and is never sent a reset.
//!
//! * `packet`: the header every packet starts with;
//! * `connection`: one connection: handshake, credit, half-closes;
//! * `host`: listener, epoll set and timer;
//! * `io`: packets in both directions; `restored`: the reset after a restore;
//! * `device` and `state`: the virtio side and its saved form.

mod backlog;
mod connection;
mod device;
mod host;
mod io;
mod packet;
mod restored;
mod state;
#[cfg(test)]
mod tests;

pub use device::{DEFAULT_GUEST_CID, HOST_CID, Vsock, VsockResources};
pub use state::VsockStateV1;
