//! What a virtio device is to its transport, and what a transport is to the event loop.

use std::os::fd::RawFd;

use vmm_sys_util::eventfd::EventFd;

use super::{DeviceRestoreError, Rings};
use crate::bus::BusDevice;

/// A virtio device. There are no defaults: a device that keeps nothing says so itself.
pub trait VirtioDevice: Send + Sized {
    /// The saved form; everything that must survive and lies in neither the queues nor guest memory.
    type State;
    /// What a restored device is handed: descriptors, and whatever is new in a clone.
    type Resources;

    /// Virtio device type.
    const DEVICE_ID: u32;
    /// Largest size of each queue; the length is the number of queues.
    const QUEUE_SIZES: &'static [u16];

    /// The device's own feature bits (the transport adds those of the ring).
    fn features(&self) -> u64;
    /// Reads the configuration space.
    fn read_config(&self, offset: u64, data: &mut [u8]);
    /// Writes the configuration space.
    fn write_config(&mut self, offset: u64, data: &[u8]);
    /// The driver is ready; queues may be used from now on.
    fn activate(&mut self, rings: &mut Rings<'_>);
    /// The driver reset the device: forget everything the driver knows of.
    fn reset(&mut self);
    /// The guest added chains to a queue (or may have).
    fn process_queue(&mut self, index: usize, rings: &mut Rings<'_>);
    /// A descriptor that the event loop watches for input, level-triggered, while the device exists.
    fn event_fd(&self) -> Option<RawFd>;
    /// [`VirtioDevice::event_fd`] is readable. Only called between `activate` and `reset`.
    fn on_event(&mut self, rings: &mut Rings<'_>);
    /// The saved form. Only called while nothing is being processed.
    fn save(&self) -> Self::State;
    /// Rebuilds a device.
    ///
    /// # Errors
    /// State that is impossible or does not fit the resources.
    fn restore(state: Self::State, resources: Self::Resources) -> Result<Self, DeviceRestoreError>;
}

/// A transport with any device behind it, as the event loop sees it.
pub trait VirtioSlot: BusDevice {
    /// Number of queues.
    fn queue_count(&self) -> usize;
    /// The eventfd that announces work for a queue; the event loop watches it.
    fn queue_event(&self, index: usize) -> Option<&EventFd>;
    /// The queue's eventfd is readable: empties it and serves the queue.
    fn process_queue(&mut self, index: usize);
    /// See [`VirtioDevice::event_fd`].
    fn event_fd(&self) -> Option<RawFd>;
    /// The device's own descriptor is readable.
    fn process_event(&mut self);
    /// Has every queue looked at once, and an unacknowledged interrupt sent again. A restored machine
    /// needs it before it runs: notifications and edges that were under way are not part of a snapshot.
    /// Looking at an empty queue has no effect, so doing it twice does no harm.
    fn kick_all(&mut self);
}

/// Answers a read of a configuration space that is `config`; beyond its end lie zeros.
pub fn copy_config(config: &[u8], offset: u64, data: &mut [u8]) {
    data.fill(0);
    let start = usize::try_from(offset).unwrap_or(usize::MAX);
    if let Some(rest) = config.get(start..) {
        let len = rest.len().min(data.len());
        if let (Some(to), Some(from)) = (data.get_mut(..len), rest.get(..len)) {
            to.copy_from_slice(from);
        }
    }
}
