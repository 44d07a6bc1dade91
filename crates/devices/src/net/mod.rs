//! The network device: frames between a tap and the guest.
//!
//! A new or restored device passes nothing in either direction until [`Net::open_gate`]: a clone must not
//! speak with the identity of its template. What the guest sends before is dropped, and so is what came in
//! on the tap.

mod device;
mod io;
mod state;
#[cfg(test)]
mod tests;

pub use device::{DEFAULT_MAC, Net, NetResources};
pub use state::NetStateV1;
