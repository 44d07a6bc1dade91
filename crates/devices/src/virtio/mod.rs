//! The virtio core: what every device shares.
//!
//! * [`device`]: the trait a device implements;
//! * [`mmio`]: the registers a driver sees, and the lifecycle behind them;
//! * [`rings`]: the device's view of its queues while it works;
//! * [`queue`] and [`chain`]: one queue, one request, both checked;
//! * [`state`]: the saved form of a transport and its queues.

pub mod chain;
pub mod device;
pub mod error;
pub mod interrupt;
pub mod mmio;
pub mod queue;
mod registers;
pub mod rings;
pub mod state;
#[cfg(test)]
mod tests;

pub use chain::{Chain, Segment};
pub use device::{VirtioDevice, VirtioSlot, copy_config};
pub use error::DeviceRestoreError;
pub use interrupt::Interrupt;
pub use mmio::{MmioResources, MmioTransport};
pub use rings::Rings;
pub use state::{QueueStateV1, TransportStateV1};
