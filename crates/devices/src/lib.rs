//! The virtio core and one folder per device.
