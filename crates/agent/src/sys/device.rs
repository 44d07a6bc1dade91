//! ioctls, modules and terminals.

use std::ffi::{CString, c_int, c_ulong};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use tokio::io::unix::AsyncFd;

/// Most bytes that one entropy request carries.
const ENTROPY_MAX: usize = 512;
/// linux/random.h: `_IOW('R', 0x03, int[2])`.
const RNDADDENTROPY: c_ulong = 0x4008_5203;
/// linux/random.h: `_IO('R', 0x07)`.
const RNDRESEEDCRNG: c_ulong = 0x5207;

/// `struct rand_pool_info` with room for [`ENTROPY_MAX`] bytes.
#[repr(C)]
struct RandPoolInfo {
    entropy_bits: c_int,
    bytes: c_int,
    data: [u8; ENTROPY_MAX],
}

fn check(returned: c_int) -> io::Result<c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Mixes `entropy` into the kernel's generator and credits it in full; what is beyond 512 bytes is not used.
pub(crate) fn add_entropy(urandom: &File, entropy: &[u8]) -> io::Result<()> {
    let used = entropy.len().min(ENTROPY_MAX);
    let mut request = RandPoolInfo { entropy_bits: 0, bytes: 0, data: [0; ENTROPY_MAX] };
    request.data[..used].copy_from_slice(&entropy[..used]);
    // `used` is at most ENTROPY_MAX, far below the range of c_int.
    request.bytes = used as c_int;
    request.entropy_bits = request.bytes * 8;
    // SAFETY: the descriptor is open, and the kernel reads `bytes` bytes behind the header, all inside `request`.
    check(unsafe { libc::ioctl(urandom.as_raw_fd(), RNDADDENTROPY, &raw const request) })?;
    Ok(())
}

/// Makes the kernel's generator take a new key from its pool now.
pub(crate) fn reseed_crng(urandom: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open and the request takes no argument.
    check(unsafe { libc::ioctl(urandom.as_raw_fd(), RNDRESEEDCRNG) })?;
    Ok(())
}

/// Registers a descriptor with the runtime.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open descriptor for as long as it lives, and AsyncFd owns it from here on.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// How many bytes can be read from a pipe or terminal without waiting.
pub(crate) fn bytes_pending(fd: impl AsFd) -> io::Result<usize> {
    let mut pending: c_int = 0;
    // SAFETY: the descriptor is open and the kernel writes one int to `pending`.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::FIONREAD, &raw mut pending) })?;
    Ok(usize::try_from(pending).unwrap_or(0))
}

/// Tells a terminal its size; its foreground process group gets SIGWINCH.
pub(crate) fn set_window_size(terminal: impl AsFd, columns: u16, rows: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open and the kernel reads one winsize.
    check(unsafe { libc::ioctl(terminal.as_fd().as_raw_fd(), libc::TIOCSWINSZ, &raw const size) })?;
    Ok(())
}

/// Opens a new terminal: our end and the process's end.
pub(crate) fn open_pty(columns: u16, rows: u16) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: no pointer is passed.
    let raw = check(unsafe { libc::posix_openpt(flags) })?;
    // SAFETY: the call above returned a new descriptor that nothing else owns.
    let ours = unsafe { OwnedFd::from_raw_fd(raw) };
    let unlock: c_int = 0;
    // SAFETY: the descriptor is open and the kernel reads one int.
    check(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlock) })?;
    // TIOCGPTPEER needs no path, so it works whatever is mounted on /dev/pts in the image.
    // SAFETY: the descriptor is open; the argument is a flag word.
    let peer = check(unsafe { libc::ioctl(ours.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the call above returned a new descriptor that nothing else owns.
    let theirs = unsafe { OwnedFd::from_raw_fd(peer) };
    set_window_size(&ours, columns, rows)?;
    Ok((ours, theirs))
}

/// Loads an already decompressed kernel module.
pub(crate) fn load_module(module: &File) -> io::Result<()> {
    let parameters = CString::default();
    // SAFETY: the descriptor is open and the parameters are a NUL-terminated string that outlives the call.
    let returned =
        unsafe { libc::syscall(libc::SYS_finit_module, module.as_raw_fd(), parameters.as_ptr(), 0 as c_int) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Brings the loopback interface up; the kernel then gives it 127.0.0.1/8 and ::1 itself.
pub(crate) fn loopback_up() -> io::Result<()> {
    // SAFETY: no pointer is passed.
    let raw = check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the call above returned a new descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    let mut name = [0; libc::IFNAMSIZ];
    name[0] = b'l' as libc::c_char;
    name[1] = b'o' as libc::c_char;
    let flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: the descriptor is open and the kernel reads one ifreq.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) })?;
    Ok(())
}

/// Makes this process the parent of every descendant whose own parent ends, as PID 1 is.
pub(crate) fn set_subreaper() -> io::Result<()> {
    let on: c_ulong = 1;
    let unused: c_ulong = 0;
    // SAFETY: the option takes integers only.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, on, unused, unused, unused) })?;
    Ok(())
}

/// Sends a signal by number, to a process or, where negative, to a process group.
pub(crate) fn send_signal(target: i32, number: i32) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    check(unsafe { libc::kill(target, number) })?;
    Ok(())
}
