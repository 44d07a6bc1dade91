//! Collects every child that ends: those asked for, and the orphans that PID 1 inherits.
//!
//! Start and reaping both run on the runtime's one thread, and [`Reaper::start`] enters a child into the table
//! without giving the thread up in between, so an exit cannot be missed however fast it comes. For the same
//! reason a pid in the table is that of the child, alive or not yet collected, and may be signalled.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::Signal;
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cgroup::Cgroups;
use crate::process::{Ended, Exit};
use crate::sys::{self, Launch};

/// Children collected before others get a turn on the thread.
const BATCH: usize = 512;

/// Table of our own children that have not been collected. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reaper(Arc<Mutex<HashMap<i32, watch::Sender<Option<Ended>>>>>);

/// A child that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: i32,
    pub(crate) ended: watch::Receiver<Option<Ended>>,
    pub(crate) failure: std::os::fd::OwnedFd,
}

impl Reaper {
    /// Starts a child.
    pub(crate) fn start(&self, launch: &Launch<'_>) -> io::Result<Started> {
        let mut children = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let launched = sys::launch(launch)?;
        let (told, ended) = watch::channel(None);
        children.insert(launched.pid, told);
        Ok(Started { pid: launched.pid, ended, failure: launched.failure })
    }

    /// Sends a signal to a child, or to its process group; nothing where it was collected already.
    pub(crate) fn signal(&self, pid: i32, signal: Signal, group: bool) {
        self.send(pid, signal as i32, group);
    }

    /// As [`Self::signal`], to a child alone, for numbers that have no name.
    pub(crate) fn signal_number(&self, pid: i32, number: i32) {
        self.send(pid, number, false);
    }

    fn send(&self, pid: i32, number: i32, group: bool) {
        let children = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if children.contains_key(&pid) {
            let target = if group { -pid } else { pid };
            // It may have ended without being collected, which is what was wanted.
            let _ = sys::send_signal(target, number);
        }
    }

    /// Whether the pid is that of a child of ours that was not collected.
    pub(crate) fn knows(&self, pid: i32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&pid)
    }

    /// Collects for ever.
    pub(crate) async fn run(self, cgroups: Option<Cgroups>) -> io::Result<()> {
        let mut ended = signal(SignalKind::child())?;
        loop {
            let mut collected = 0_usize;
            while self.collect_one() {
                collected += 1;
                if collected.is_multiple_of(BATCH) {
                    tokio::task::yield_now().await;
                }
            }
            if let Some(cgroups) = cgroups.as_ref().filter(|_| collected > 0) {
                cgroups.sweep();
            }
            if ended.recv().await.is_none() {
                return Ok(());
            }
        }
    }

    fn collect_one(&self) -> bool {
        let (pid, status) = match wait(WaitOptions::NOHANG) {
            Ok(Some(ended)) => ended,
            Err(Errno::INTR) => return true,
            Ok(None) | Err(_) => return false,
        };
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            // Stopped and continued children are not asked for.
            (None, None) => return true,
        };
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid.as_raw_nonzero().get());
        if let Some(told) = told {
            // Nobody may be waiting any more.
            let _ = told.send(Some(Ended { exit, at: Instant::now() }));
        }
        true
    }
}
