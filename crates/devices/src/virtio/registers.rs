//! The names of the virtio-mmio registers (version 2), as offsets.

use virtio_bindings::virtio_config as config;
use virtio_bindings::virtio_mmio as mmio;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"virt");
pub(crate) const VERSION: u32 = 2;
/// `FKDV`: nothing depends on it, but it shows in the guest's sysfs.
pub(crate) const VENDOR: u32 = u32::from_le_bytes(*b"FKDV");

pub(crate) const MAGIC_VALUE: u64 = mmio::VIRTIO_MMIO_MAGIC_VALUE as u64;
pub(crate) const VERSION_VALUE: u64 = mmio::VIRTIO_MMIO_VERSION as u64;
pub(crate) const DEVICE_ID: u64 = mmio::VIRTIO_MMIO_DEVICE_ID as u64;
pub(crate) const VENDOR_ID: u64 = mmio::VIRTIO_MMIO_VENDOR_ID as u64;
pub(crate) const DEVICE_FEATURES: u64 = mmio::VIRTIO_MMIO_DEVICE_FEATURES as u64;
pub(crate) const DEVICE_FEATURES_SEL: u64 = mmio::VIRTIO_MMIO_DEVICE_FEATURES_SEL as u64;
pub(crate) const DRIVER_FEATURES: u64 = mmio::VIRTIO_MMIO_DRIVER_FEATURES as u64;
pub(crate) const DRIVER_FEATURES_SEL: u64 = mmio::VIRTIO_MMIO_DRIVER_FEATURES_SEL as u64;
pub(crate) const QUEUE_SEL: u64 = mmio::VIRTIO_MMIO_QUEUE_SEL as u64;
pub(crate) const QUEUE_NUM_MAX: u64 = mmio::VIRTIO_MMIO_QUEUE_NUM_MAX as u64;
pub(crate) const QUEUE_NUM: u64 = mmio::VIRTIO_MMIO_QUEUE_NUM as u64;
pub(crate) const QUEUE_READY: u64 = mmio::VIRTIO_MMIO_QUEUE_READY as u64;
/// Where the monitor places the ioeventfds, the queue's index being the value to match.
pub(crate) const QUEUE_NOTIFY: u64 = mmio::VIRTIO_MMIO_QUEUE_NOTIFY as u64;
pub(crate) const INTERRUPT_STATUS: u64 = mmio::VIRTIO_MMIO_INTERRUPT_STATUS as u64;
pub(crate) const INTERRUPT_ACK: u64 = mmio::VIRTIO_MMIO_INTERRUPT_ACK as u64;
pub(crate) const STATUS: u64 = mmio::VIRTIO_MMIO_STATUS as u64;
pub(crate) const QUEUE_DESC_LOW: u64 = mmio::VIRTIO_MMIO_QUEUE_DESC_LOW as u64;
pub(crate) const QUEUE_DESC_HIGH: u64 = mmio::VIRTIO_MMIO_QUEUE_DESC_HIGH as u64;
pub(crate) const QUEUE_AVAIL_LOW: u64 = mmio::VIRTIO_MMIO_QUEUE_AVAIL_LOW as u64;
pub(crate) const QUEUE_AVAIL_HIGH: u64 = mmio::VIRTIO_MMIO_QUEUE_AVAIL_HIGH as u64;
pub(crate) const QUEUE_USED_LOW: u64 = mmio::VIRTIO_MMIO_QUEUE_USED_LOW as u64;
pub(crate) const QUEUE_USED_HIGH: u64 = mmio::VIRTIO_MMIO_QUEUE_USED_HIGH as u64;
pub(crate) const SHM_LEN_LOW: u64 = mmio::VIRTIO_MMIO_SHM_LEN_LOW as u64;
pub(crate) const SHM_BASE_HIGH: u64 = mmio::VIRTIO_MMIO_SHM_BASE_HIGH as u64;
pub(crate) const CONFIG_GENERATION: u64 = mmio::VIRTIO_MMIO_CONFIG_GENERATION as u64;
pub(crate) const CONFIG: u64 = mmio::VIRTIO_MMIO_CONFIG as u64;

pub(crate) mod status {
    use super::config;

    pub(crate) const ACKNOWLEDGE: u32 = config::VIRTIO_CONFIG_S_ACKNOWLEDGE;
    pub(crate) const DRIVER: u32 = config::VIRTIO_CONFIG_S_DRIVER;
    pub(crate) const DRIVER_OK: u32 = config::VIRTIO_CONFIG_S_DRIVER_OK;
    pub(crate) const FEATURES_OK: u32 = config::VIRTIO_CONFIG_S_FEATURES_OK;
    pub(crate) const NEEDS_RESET: u32 = config::VIRTIO_CONFIG_S_NEEDS_RESET;
    pub(crate) const FAILED: u32 = config::VIRTIO_CONFIG_S_FAILED;
}
