//! Monitors that were started ahead of time and wait for their machine.
//!
//! Starting a process is most of what a fork costs, and needs nothing of what is forked. A waiting monitor has a run
//! folder as any other, under a name that is no sandbox's; whoever takes it renames the folder, and from then on there
//! is no difference. A controller that was killed leaves folders without rows, which the next one removes with their
//! processes as it does with all of those.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::launch::ProgramId;
use super::process::Monitor;

/// Waiting monitors, at most so many.
#[derive(Debug)]
pub(super) struct Pool {
    size: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<Waiting>,
    closed: bool,
}

/// One that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) monitor: Monitor,
    /// What it runs.
    pub(super) program: ProgramId,
}

impl Pool {
    pub(super) fn new(size: usize) -> Self {
        Self { size, state: Mutex::default() }
    }

    /// One that lives and runs this very program, where there is one.
    pub(super) fn take(&self, program: ProgramId) -> Option<Monitor> {
        loop {
            // One that is no good is ended and removed beside us, by its guard.
            let Waiting { monitor, program: its } = self.lock().waiting.pop()?;
            if its == program && monitor.process().is_alive() {
                return Some(monitor);
            }
        }
    }

    /// How many wait, and how many are wanted.
    pub(super) fn level(&self) -> (usize, usize) {
        (self.lock().waiting.len(), self.size)
    }

    /// Whether another is wanted.
    pub(super) fn lacks(&self) -> bool {
        let state = self.lock();
        !state.closed && state.waiting.len() < self.size
    }

    /// Takes one in; it comes back where none is wanted any more.
    pub(super) fn put(&self, waiting: Waiting) -> Result<(), Box<Monitor>> {
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= self.size {
            return Err(Box::new(waiting.monitor));
        }
        state.waiting.push(waiting);
        Ok(())
    }

    /// Takes no more in, and gives up what it has.
    pub(super) fn close(&self) -> Vec<Monitor> {
        let mut state = self.lock();
        state.closed = true;
        state.waiting.drain(..).map(|waiting| waiting.monitor).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
