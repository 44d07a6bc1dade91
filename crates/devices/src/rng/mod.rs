//! The entropy device: random bytes of the host for the guest's kernel.

mod device;
mod io;
mod state;
#[cfg(test)]
mod tests;

pub use device::{Rng, RngResources};
pub use state::RngStateV1;
