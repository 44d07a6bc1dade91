//! The one interrupt of a virtio-mmio device.

use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};
use vmm_sys_util::eventfd::EventFd;

/// The interrupt status register and the eventfd (irqfd, edge) that carries it into the guest.
#[derive(Debug)]
pub struct Interrupt {
    status: u32,
    event: EventFd,
}

impl Interrupt {
    pub(crate) fn new(event: EventFd, status: u32) -> Self {
        Self { status, event }
    }

    pub(crate) fn status(&self) -> u32 {
        self.status
    }

    pub(crate) fn acknowledge(&mut self, bits: u32) {
        self.status &= !bits;
    }

    pub(crate) fn used_buffers(&mut self) {
        self.status |= VIRTIO_MMIO_INT_VRING;
        self.fire();
    }

    pub(crate) fn config_changed(&mut self) {
        self.status |= VIRTIO_MMIO_INT_CONFIG;
        self.fire();
    }

    /// Sends the interrupt again if the driver has not acknowledged it: an edge that was on its way when
    /// the machine was saved may be in neither the status register's nor the interrupt controller's past.
    pub(crate) fn repeat_if_pending(&self) {
        if self.status != 0 {
            self.fire();
        }
    }

    fn fire(&self) {
        // Fails only when 2^64-2 edges are unread; the guest is then interrupted anyway.
        let _ = self.event.write(1);
    }
}
