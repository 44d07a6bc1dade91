//! Why saved devices are refused.

/// A device that could not be rebuilt from its saved form. Nothing has run when this is returned.
#[derive(Debug, thiserror::Error)]
pub enum DeviceRestoreError {
    /// The state belongs to another kind of device; the snapshot and the machine do not fit.
    #[error("the saved device is of virtio type {found}, not {expected}")]
    WrongDevice {
        /// Type that was expected here.
        expected: u32,
        /// Type that the state names.
        found: u32,
    },
    /// The number of queues, or of their eventfds, differs from the device's.
    #[error("the device has {expected} queues, but {found} were handed over")]
    QueueCount {
        /// Queues of this device.
        expected: usize,
        /// Queues in the state or among the resources.
        found: usize,
    },
    /// A queue's saved form is impossible or points outside guest memory.
    #[error("the saved form of queue {0} is not valid")]
    Queue(usize),
    /// The guest negotiated features that this build does not offer.
    #[error("the guest uses features {missing:#x} that this device does not offer")]
    Features {
        /// Feature bits in use but not offered.
        missing: u64,
    },
    /// The device's own saved form is impossible or does not fit the resources handed over.
    #[error("the saved device state does not fit: {0}")]
    Unfit(&'static str),
    /// The host refused something the device needs.
    #[error("the host refused what the device needs")]
    Io(#[from] std::io::Error),
}
