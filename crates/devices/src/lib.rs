//! The devices of a machine: the virtio core, one folder per virtio device, and the few old PC devices
//! (serial port, keyboard controller's reset line) that a kernel wants at boot.
//!
//! A device knows guest memory and the descriptors it was handed; it knows no paths, names or KVM. The
//! monitor wires three things to each virtio device and nothing else:
//!
//! ```text
//!  vCPU exits ──▶ bus::Bus ──▶ virtio::MmioTransport<D> ──▶ D: VirtioDevice (block, vsock, rng, net)
//!  event loop ──▶ queue eventfds, device descriptor ──┘        │
//!  irqfd      ◀── interrupt eventfd ◀──────────────────────────┘
//! ```
//!
//! All requests are served synchronously on the event loop's thread under the transport's lock, so a
//! paused loop means that nothing is in flight: what `save` writes is complete, and a restored machine
//! only has to look at every queue once more ([`virtio::VirtioSlot::kick_all`]).
//!
//! Everything a guest writes is hostile. A fault is counted in [`faults::GuestFaults`] and answered with
//! an error or by marking the queue broken; it never stops the monitor.

#![forbid(unsafe_code)]
#![deny(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_possible_wrap)]

pub mod balloon;
pub mod block;
pub mod bus;
pub mod console;
pub mod faults;
#[cfg(test)]
mod fuzz;
pub mod i8042;
#[cfg(test)]
mod lies;
pub mod net;
pub mod rng;
pub mod serial;
#[cfg(test)]
mod testing;
mod trigger;
pub mod virtio;
pub mod vsock;

pub use forkd_memory::GuestRam;
