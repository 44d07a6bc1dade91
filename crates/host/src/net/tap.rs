//! Taps as the monitor's network device wants them.

#![allow(unsafe_code, reason = "ioctls of taps, which no crate wraps")]

use std::ffi::c_int;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const DEVICE: &str = "/dev/net/tun";
/// virtio's `virtio_net_hdr_v1`, before every frame.
const HEADER: c_int = 12;
/// linux/if_tun.h.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETPERSIST: libc::c_ulong = 0x4004_54cb;
const TUNSETVNETHDRSZ: libc::c_ulong = 0x4004_54d8;

/// Whether taps can be had.
pub(super) fn is_there() -> io::Result<()> {
    OpenOptions::new().read(true).write(true).open(DEVICE).map(drop)
}

/// Makes the tap `name` in this thread's namespace, or takes it up again where nobody has it: it stays when the
/// descriptor is closed. Reads and writes do not wait.
pub(super) fn open(name: &str) -> io::Result<File> {
    let tap = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru {
            ifru_flags: (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short,
        },
    };
    for (to, from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the descriptor is open, and the kernel reads and writes one ifreq.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETIFF, &raw mut request) })?;
    let header = HEADER;
    // SAFETY: the descriptor is open, and the kernel reads one int.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETVNETHDRSZ, &raw const header) })?;
    let on: libc::c_ulong = 1;
    // SAFETY: the descriptor is open and the argument is a number.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETPERSIST, on) })?;
    Ok(tap)
}

fn check(returned: c_int) -> io::Result<()> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
