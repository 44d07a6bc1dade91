//! The 16550 serial port: the boot log, and a way to type.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use vm_superio::Serial;
use vm_superio::serial::{NoEvents, SerialState};
use vmm_sys_util::eventfd::EventFd;

use crate::bus::BusDevice;
use crate::console::ConsoleLog;
use crate::trigger::EventTrigger;
use crate::virtio::DeviceRestoreError;

/// Number of I/O ports of the device.
pub const SERIAL_LEN: u64 = 8;
/// Bytes typed at the guest that wait behind the port's own 64-byte buffer.
const MAX_BACKLOG: usize = 4096;

/// A serial port whose output goes to a [`ConsoleLog`].
#[derive(Debug)]
pub struct SerialPort {
    uart: Serial<EventTrigger, NoEvents, ConsoleLog>,
    backlog: VecDeque<u8>,
}

/// The saved form of a [`SerialPort`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SerialStateV1 {
    /// Divisor latch, low byte.
    pub baud_divisor_low: u8,
    /// Divisor latch, high byte.
    pub baud_divisor_high: u8,
    /// Interrupt enable register.
    pub interrupt_enable: u8,
    /// Interrupt identification register.
    pub interrupt_identification: u8,
    /// Line control register.
    pub line_control: u8,
    /// Line status register.
    pub line_status: u8,
    /// Modem control register.
    pub modem_control: u8,
    /// Modem status register.
    pub modem_status: u8,
    /// Scratch register.
    pub scratch: u8,
    /// Input the guest can read.
    pub in_buffer: Vec<u8>,
    /// Input waiting behind it.
    pub backlog: Vec<u8>,
}

impl SerialPort {
    /// A port in its reset state; `interrupt` is an irqfd.
    #[must_use]
    pub fn new(interrupt: EventFd, log: ConsoleLog) -> Self {
        Self { uart: Serial::new(EventTrigger(interrupt), log), backlog: VecDeque::new() }
    }

    /// Types `input` at the guest. The answer says how much was taken; the rest did not fit.
    pub fn enqueue(&mut self, input: &[u8]) -> usize {
        let taken = input.len().min(MAX_BACKLOG.saturating_sub(self.backlog.len()));
        self.backlog.extend(input.iter().take(taken));
        self.refill();
        taken
    }

    /// Console output that was not kept.
    #[must_use]
    pub fn dropped_output(&self) -> u64 {
        self.uart.writer().dropped()
    }

    /// The saved form.
    #[must_use]
    pub fn save(&self) -> SerialStateV1 {
        let SerialState {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable,
            interrupt_identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer,
        } = self.uart.state();
        SerialStateV1 {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable,
            interrupt_identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer,
            backlog: self.backlog.iter().copied().collect(),
        }
    }

    /// Rebuilds a port; an interrupt that was pending is sent again.
    ///
    /// # Errors
    /// More input than the port can hold.
    pub fn restore(
        state: SerialStateV1,
        interrupt: EventFd,
        log: ConsoleLog,
    ) -> Result<Self, DeviceRestoreError> {
        let SerialStateV1 {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable,
            interrupt_identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer,
            backlog,
        } = state;
        if backlog.len() > MAX_BACKLOG {
            return Err(DeviceRestoreError::Unfit("more serial input than the port can hold"));
        }
        let registers = SerialState {
            baud_divisor_low,
            baud_divisor_high,
            interrupt_enable,
            interrupt_identification,
            line_control,
            line_status,
            modem_control,
            modem_status,
            scratch,
            in_buffer,
        };
        let uart = Serial::from_state(&registers, EventTrigger(interrupt), NoEvents, log)
            .map_err(|_| DeviceRestoreError::Unfit("more serial input than the port can hold"))?;
        Ok(Self { uart, backlog: backlog.into() })
    }

    fn refill(&mut self) {
        let (head, _) = self.backlog.as_slices();
        if head.is_empty() || self.uart.fifo_capacity() == 0 {
            return;
        }
        // In loopback mode the port takes nothing, and an interrupt that cannot be sent is pending anyway.
        let taken = self.uart.enqueue_raw_bytes(head).unwrap_or(0);
        self.backlog.drain(..taken);
    }
}

impl BusDevice for SerialPort {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        match (u8::try_from(offset), data) {
            (Ok(port), [byte]) => {
                *byte = self.uart.read(port);
                self.refill();
            }
            (_, wide) => wide.fill(0xff),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        if let (Ok(port), [byte]) = (u8::try_from(offset), data) {
            // The log never fails and a failed interrupt only means that one is pending.
            let _ = self.uart.write(port, *byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};

    use super::*;

    fn port() -> (SerialPort, EventFd, std::fs::File) {
        let interrupt = EventFd::new(0o4000).unwrap();
        let file = tempfile::tempfile().unwrap();
        let log = ConsoleLog::new(file.try_clone().unwrap(), 100);
        (SerialPort::new(interrupt.try_clone().unwrap(), log), interrupt, file)
    }

    fn get(port: &mut SerialPort, offset: u64) -> u8 {
        let mut data = [0];
        port.read(offset, &mut data);
        data[0]
    }

    #[test]
    fn output_reaches_the_log() {
        let (mut port, _interrupt, mut file) = port();
        for byte in b"boot\n" {
            port.write(0, &[*byte]);
        }
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "boot\n");
        port.write(0, &[1, 2]);
        assert_eq!(file.metadata().unwrap().len(), 5, "a wide access is not a port access");
    }

    #[test]
    fn input_longer_than_the_fifo_arrives_whole_and_interrupts() {
        let (mut port, interrupt, _file) = port();
        port.write(1, &[1]);
        let input: Vec<u8> = (0..=255).cycle().take(1000).collect();
        assert_eq!(port.enqueue(&input), 1000);
        assert_eq!(interrupt.read().unwrap(), 1);
        let mut seen = Vec::new();
        while get(&mut port, 5) & 1 != 0 {
            seen.push(get(&mut port, 0));
        }
        assert_eq!(seen, input);
        assert_eq!(port.enqueue(&[0; 10_000]), MAX_BACKLOG, "a bound on what waits");
    }

    #[test]
    fn state_changes_with_use_and_survives_a_restore() {
        let (mut port, interrupt, file) = port();
        let fresh = port.save();
        port.write(7, &[0x5a]);
        port.write(1, &[1]);
        port.enqueue(&[7; 100]);
        let used = port.save();
        assert_ne!(fresh, used);
        let log = ConsoleLog::new(file, 100);
        let _ = interrupt.read();
        let mut again = SerialPort::restore(used.clone(), interrupt.try_clone().unwrap(), log).unwrap();
        assert_eq!(again.save(), used);
        assert_eq!(interrupt.read().unwrap(), 1, "the pending interrupt is sent again");
        assert_eq!(get(&mut again, 7), 0x5a);
        assert_eq!((0..100).map(|_| get(&mut again, 0)).collect::<Vec<_>>(), [7; 100]);
    }

    #[test]
    fn impossible_state_is_refused() {
        let (port, interrupt, _file) = port();
        let mut state = port.save();
        state.in_buffer = vec![0; 65];
        let restored = SerialPort::restore(state, interrupt.try_clone().unwrap(), ConsoleLog::sink());
        assert!(restored.is_err());
        let mut state = port.save();
        state.backlog = vec![0; MAX_BACKLOG + 1];
        assert!(SerialPort::restore(state, interrupt, ConsoleLog::sink()).is_err());
    }
}
