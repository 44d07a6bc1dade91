//! What the old PC devices signal through.

use std::io;

use vm_superio::Trigger;
use vmm_sys_util::eventfd::EventFd;

/// An eventfd as a device's output line.
#[derive(Debug)]
pub(crate) struct EventTrigger(pub(crate) EventFd);

impl Trigger for EventTrigger {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}
