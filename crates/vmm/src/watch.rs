//! Adding to an epoll set.

use std::os::fd::RawFd;

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use crate::error::MonitorError;

/// Has `epoll` report `token` while `fd` is readable.
pub(crate) fn watch(epoll: &Epoll, fd: RawFd, token: u64) -> Result<(), MonitorError> {
    epoll.ctl(ControlOperation::Add, fd, EpollEvent::new(EventSet::IN, token)).map_err(MonitorError::Events)
}
