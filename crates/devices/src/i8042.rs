//! The keyboard controller, of which only the reset line exists: `reboot=k` ends the machine through it.

use vm_superio::I8042Device;
use vmm_sys_util::eventfd::EventFd;

use crate::bus::BusDevice;
use crate::trigger::EventTrigger;

/// First I/O port of the device.
pub const I8042_BASE: u64 = 0x60;
/// Number of I/O ports.
pub const I8042_LEN: u64 = 5;

/// The reset line. It holds no state, so there is nothing to save.
#[derive(Debug)]
pub struct I8042 {
    line: I8042Device<EventTrigger>,
}

impl I8042 {
    /// `reset` is written when the guest resets the CPU.
    #[must_use]
    pub fn new(reset: EventFd) -> Self {
        Self { line: I8042Device::new(EventTrigger(reset)) }
    }
}

impl BusDevice for I8042 {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        match (u8::try_from(offset), data) {
            // Status 0: both buffers empty, so a driver that waits for either goes on at once.
            (Ok(port), [byte]) => *byte = self.line.read(port),
            (_, wide) => wide.fill(0xff),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let (Ok(port), [byte]) = (u8::try_from(offset), data) {
            // Fails only when a reset is already pending 2^64-2 times.
            let _ = self.line.write(port, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reset_command_pulls_the_line() {
        let reset = EventFd::new(0o4000).unwrap();
        let mut device = I8042::new(reset.try_clone().unwrap());
        device.write(0, &[0xfe]);
        device.write(4, &[0xd1]);
        device.write(4, &[0xfe, 0xfe]);
        assert!(reset.read().is_err());
        device.write(4, &[0xfe]);
        assert_eq!(reset.read().unwrap(), 1);
        let mut status = [0xaa];
        device.read(4, &mut status);
        assert_eq!(status, [0]);
    }
}
