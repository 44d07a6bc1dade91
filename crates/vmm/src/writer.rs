//! The writer: a copy of the monitor, made by `fork(2)`, that writes changed pages out while the guest runs on.
//!
//! The copy shares all memory copy-on-write, so it keeps the instant at which it was made whatever the guest does
//! afterwards. It has one thread, takes no lock, allocates nothing and logs nothing: whatever the monitor's other
//! threads held when it was made stays held. It closes every descriptor but its own first, since a copy of KVM's would
//! keep the virtual machine of a source alive that is killed meanwhile (its `kvm_run` pages are not inherited for the
//! same reason). And it opens its own page map: one opened before shows the memory of the source. From then on it may
//! do nothing but read, write and end: what it copies is a guest's, and a guest may have captured the monitor before.

mod filter;

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use forkd_memory::GuestRam;
use forkd_memory::changed::Pagemap;
use forkd_memory::writer::{Scratch, Written, write_changed};

pub use self::filter::of_writer;
use crate::jail::Filter;
use crate::line::Line;
use crate::priority;

/// What a writer works with. Made before the fork, since the copy must not allocate.
#[derive(Debug)]
pub struct Job {
    /// Where the pages go.
    pub data: File,
    /// Where their extent table goes.
    pub table: File,
    /// The pipe into which the writer says how it ended.
    pub status: File,
    /// A directory of proc in which `self` is the process that looks.
    pub proc_dir: Arc<OwnedFd>,
    /// Room to work in.
    pub scratch: Scratch,
    /// What it may ask of the kernel.
    pub filter: Filter,
}

/// Lets writers end without anybody waiting for them: the kernel removes their processes at once.
pub fn never_wait() {
    // SAFETY: ignoring a signal installs no handler, so no code of ours ever runs in one.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Forks a writer off and returns its process id. The vCPUs and devices must stand still.
///
/// # Errors
/// The kernel's refusal, for instance where a limit of processes or of memory is reached.
pub fn fork(ram: &GuestRam, job: Job) -> io::Result<u32> {
    // SAFETY: the copy runs nothing but `write_and_exit`, which neither allocates, locks nor returns, and the
    // memory that it uses is its own from here on.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => write_and_exit(ram, job),
        pid => Ok(pid.unsigned_abs()),
    }
}

fn write_and_exit(ram: &GuestRam, mut job: Job) -> ! {
    priority::writer();
    let files = [&job.data, &job.table, &job.status].map(File::as_raw_fd);
    close_all_but([files[0], files[1], files[2], job.proc_dir.as_raw_fd()]);
    let done = Pagemap::open(job.proc_dir.as_fd()).and_then(|pagemap| {
        job.filter.bind()?;
        let written = write_changed(ram, &pagemap, (&job.data, &job.table), &mut job.scratch);
        // The end of the process closes it; the filter allows nobody to.
        std::mem::forget(pagemap);
        written
    });
    let mut line = Line::default();
    // A line that does not fit is cut, and then taken for none.
    let _ = match &done {
        Ok(Written { extents, pages }) => {
            writeln!(line, r#"{{"how":"written","extents":{extents},"pages":{pages}}}"#)
        }
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            writeln!(line, r#"{{"how":"failed","errno":{errno}}}"#)
        }
    };
    // Nobody is left to be told where this fails.
    let _ = io::Write::write_all(&mut &job.status, line.bytes());
    // SAFETY: ends this process at once; nothing that the source shares with it is touched.
    unsafe { libc::_exit(i32::from(done.is_err())) }
}

/// Closes every other descriptor of this process.
pub(crate) fn close_all_but(mut kept: [i32; 4]) {
    kept.sort_unstable();
    let mut from = 0;
    for fd in kept {
        close_range(from, fd - 1);
        from = from.max(fd + 1);
    }
    close_range(from, i32::MAX);
}

fn close_range(first: i32, last: i32) {
    if first <= last {
        // SAFETY: this process is a copy that uses none of these descriptors again; the source keeps its own.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    }
}
