//! The jail: what a monitor gives up before it is told anything of a guest.
//!
//! ```text
//!  forkd-vmm (started by the engine, privileged)
//!    │ leaves every namespace and the host's files behind, then only waits for the monitor to be ready and ends
//!    └─▶ reaper: process 1 of the pid namespace; notes how the monitor ended, reaps writers, ends with the last one
//!          └─▶ monitor: becomes a user of its own without any right, makes its machine, binds itself by a filter
//!                └─▶ writers of live branches
//! ```
//!
//! * The monitor is not the process that was started. Who wants to know it connects to the control socket: what the
//!   socket says of its peer (`SO_PEERCRED`) is the process that listens, as seen from the one that asks, and the
//!   monitor listens anew once it is jailed. It is the monitor itself that is killed, never the reaper: with process 1
//!   everything in its namespace ends, and writers outlive their source.
//! * The root is an empty read-only file system. What is left of the host are descriptors: KVM's, the entropy source,
//!   the log, what the engine hands in, and a proc file system of the own pid namespace that is mounted nowhere, for
//!   the page map.
//! * Two filters bind the event loop: one for building a machine, and over it a narrower one for serving it. vCPU
//!   threads have one of their own. Whatever else is asked of the kernel ends the process, and the kernel logs it.
//!
//! There is no way around it in a release build. Elsewhere [`Entrance::unjailed`] serves tests of people who are not
//! root.

mod filter;
mod namespaces;
mod privileges;
mod reaper;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;

pub use self::filter::{Filter, Rules};

/// Why a monitor could not be jailed. It does not run then.
#[derive(Debug, thiserror::Error)]
pub enum JailError {
    /// The kernel refused a step.
    #[error("the monitor could not be jailed: the kernel would not {what}; it must be started as root")]
    Refused {
        /// The step, as a verb.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// A filter is no program, which is a mistake in its rules.
    #[error("the monitor could not be jailed: its filter cannot be used")]
    Filter(#[from] seccompiler::BackendError),
}

trait Step<T> {
    /// Names the step that the kernel refused.
    fn step(self, what: &'static str) -> Result<T, JailError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, what: &'static str) -> Result<T, JailError> {
        self.map_err(|e| JailError::Refused { what, source: e.into() })
    }
}

/// A monitor within its own namespaces that still has its rights.
#[derive(Debug)]
pub struct Entrance {
    proc_dir: Arc<OwnedFd>,
    jail: Option<Jail>,
}

#[derive(Debug)]
struct Jail {
    /// User and group that the monitor becomes.
    id: u32,
    /// Told once the monitor is ready; its end without a word means that it never will be.
    ready: File,
}

impl Entrance {
    /// Comes back in the monitor only: the process that called this ends when the monitor is ready, the reaper with
    /// the last process of the jail. Standard output becomes the reaper's, which notes there how the monitor ended.
    /// The caller has one thread.
    ///
    /// # Errors
    /// The kernel's refusal of a step; in whichever process that was.
    pub fn new(id: u32) -> Result<Self, JailError> {
        namespaces::leave()?;
        let (waiting, ready) = io::pipe().step("make a pipe")?;
        let (waiting, ready) = (File::from(OwnedFd::from(waiting)), File::from(OwnedFd::from(ready)));
        if reaper::fork()?.is_some() {
            drop(ready);
            wait_until_ready(waiting);
        }
        drop(waiting);
        namespaces::name_host()?;
        let proc_dir = namespaces::own_proc()?;
        if let Some(monitor) = reaper::fork()? {
            drop((ready, proc_dir));
            privileges::drop_all(id)?;
            reaper::reap_until_empty(monitor);
        }
        reaper::keep_ending_from_monitor()?;
        Ok(Self { proc_dir: Arc::new(proc_dir), jail: Some(Jail { id, ready }) })
    }

    /// No jail, for tests of people who are not root. It says so loudly.
    ///
    /// # Errors
    /// /proc cannot be opened.
    #[cfg(debug_assertions)]
    pub fn unjailed() -> Result<Self, JailError> {
        let _ = writeln!(io::stderr(), "forkd-vmm: NOT JAILED: this is a debug build that was told so");
        Ok(Self { proc_dir: Arc::new(File::open("/proc").step("open /proc")?.into()), jail: None })
    }

    /// A directory of proc in which `self` is the process that looks.
    pub fn proc_dir(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.proc_dir)
    }

    /// Gives every right up; the calling process has one thread. What it may ask of the kernel is not bound yet.
    ///
    /// # Errors
    /// The kernel's refusal of a step.
    pub fn drop_rights(self) -> Result<Inside, JailError> {
        if let Some(jail) = &self.jail {
            privileges::drop_all(jail.id)?;
        }
        Ok(Inside(self))
    }
}

/// A monitor without any right, whose machine may be made.
#[derive(Debug)]
pub struct Inside(Entrance);

impl Inside {
    /// Shuts the door: the calling process is bound by its filter from here on, and listens as what it is now.
    ///
    /// # Errors
    /// The kernel's refusal of a step.
    pub fn shut(self, listener: &UnixListener) -> Result<Rules, JailError> {
        let Entrance { proc_dir, jail } = self.0;
        let Some(mut jail) = jail else { return Ok(Rules::none()) };
        let rules = Rules::new(proc_dir.as_raw_fd())?;
        rustix::net::listen(listener, BACKLOG).step("listen anew")?;
        jail.ready.write_all(b"!").step("tell that the monitor is ready")?;
        drop(jail.ready);
        rules.bind_building().step("bind the monitor by its filter")?;
        Ok(rules)
    }
}

/// Connections that wait to be accepted; the engine has one at a time.
const BACKLOG: i32 = 16;

/// The process that was started has nothing more to do.
fn wait_until_ready(mut waiting: File) -> ! {
    let told = waiting.read_exact(&mut [0]);
    reaper::end(i32::from(told.is_err()))
}
