//! The balloon: memory that the guest does not use goes back to the host.
//!
//! The host never asks for any. What matters is free page reporting: a while after pages became free the guest's kernel
//! says so, and they are given back. It relies on nothing that was in them; a kernel that does (pages poisoned or cleared
//! when they are freed) does not report, since the device does not offer to be told about that.

mod device;
mod io;
mod state;
#[cfg(test)]
mod tests;

pub use device::Balloon;
pub use state::BalloonStateV1;
