//! A monitor that was captured: jailed as every one, it then does what it is told, one line after the other.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::sync::Arc;

use forkd_vmm::jail::Entrance;
use forkd_vmm::{Host, HostFiles};
use rustix::io::Errno;

/// Set for the copy of this program that is to be captured.
pub(crate) const CAPTURED: &str = "FORKD_TEST_CAPTURED";

pub(crate) fn main() -> ExitCode {
    let uid = std::env::args().nth(2).unwrap().parse().unwrap();
    let files = HostFiles::open().unwrap();
    let entrance = Entrance::new(uid).unwrap();
    let proc_dir = entrance.proc_dir();
    let listener = UnixListener::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let host = Host::new(files, entrance, &listener).unwrap();
    host.rules().bind_serving().unwrap();
    // Who only wants to know which process this is says nothing.
    for told in listener.incoming() {
        let told = told.unwrap();
        let mut answers = told.try_clone().unwrap();
        for act in BufReader::new(told).lines() {
            let said = attempt(&act.unwrap(), &proc_dir);
            writeln!(answers, "{said}").unwrap();
        }
    }
    ExitCode::SUCCESS
}

fn attempt(act: &str, proc_dir: &Arc<OwnedFd>) -> String {
    let (verb, argument) = act.split_once(' ').unwrap_or((act, ""));
    match act {
        "connect out" => said(TcpStream::connect("192.0.2.1:80")),
        "connect a socket" => said(UnixStream::connect("/run/forkd.sock")),
        "trace another monitor" => call(libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), 1, 0]),
        "execute a program" => call(libc::SYS_execve, [0, 0, 0]),
        "start a thread" => said(std::thread::Builder::new().spawn(|| ())),
        "signal the controller" => call(libc::SYS_kill, [1, libc::SIGKILL.into(), 0]),
        "signal it as a thread" => call(libc::SYS_tgkill, [1, 1, libc::SIGKILL.into()]),
        "map code" => call(libc::SYS_mmap, [0, 4096, (libc::PROT_READ | libc::PROT_EXEC).into()]),
        "make memory code" => call(libc::SYS_mprotect, [0, 4096, libc::PROT_EXEC.into()]),
        "leave its user namespace" => call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0]),
        "mount" => call(libc::SYS_mount, [0, 0, 0]),
        "become root" => call(libc::SYS_setuid, [0, 0, 0]),
        // KVM_CREATE_VM
        "make another machine" => call(libc::SYS_ioctl, [3, 0xae01, 0]),
        _ => match verb {
            "open" => said(File::open(argument)),
            "below-proc" => below_proc(proc_dir, argument),
            "fork" => format!("{} copies", copies(argument.parse().unwrap_or(u32::MAX))),
            "fill" => said(fill(argument.parse().unwrap())),
            _ => "not understood".to_owned(),
        },
    }
}

fn said<T, E: std::fmt::Display>(outcome: Result<T, E>) -> String {
    outcome.map_or_else(|e| format!("refused: {e}"), |_| "done".to_owned())
}

/// A call of the kernel's with arguments that no harm can come of here.
fn call(number: i64, [a, b, c]: [i64; 3]) -> String {
    // SAFETY: none of the calls above touches memory of this process: each is refused, or has null for an address.
    let result = unsafe { libc::syscall(number, a, b, c, 0, 0, 0) };
    if result == -1 { said(Err::<(), _>(std::io::Error::last_os_error())) } else { "done".to_owned() }
}

/// Opens as the monitor opens its page map, which its filter lets through.
fn below_proc(proc_dir: &OwnedFd, path: &str) -> String {
    let path = CString::new(path).unwrap();
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a zero, and the directory is borrowed for the call.
    match unsafe { libc::openat(proc_dir.as_raw_fd(), path.as_ptr(), flags) } {
        -1 => said(Err::<(), _>(std::io::Error::last_os_error())),
        _ => "done".to_owned(),
    }
}

/// Copies itself until that is refused; the copies wait to be ended.
fn copies(most: u32) -> u32 {
    for made in 0..most {
        // SAFETY: the copy does nothing but wait.
        match unsafe { libc::fork() } {
            -1 => {
                assert_eq!(Errno::from_io_error(&std::io::Error::last_os_error()), Some(Errno::AGAIN));
                return made;
            }
            0 => loop {
                std::thread::sleep(std::time::Duration::from_secs(3600));
            },
            _ => {}
        }
    }
    most
}

fn fill(mib: usize) -> Result<(), std::convert::Infallible> {
    let mut memory = vec![0u8; mib << 20];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(memory);
    Ok(())
}
