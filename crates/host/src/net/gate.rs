//! What a slot lets out right now, and the names that belong to it: changed together or not at all.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::filter::{Filter, Names};
use super::netfilter::Netfilter;

/// The sets of one namespace, with their names.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    netfilter: Netfilter,
    names: Arc<Names>,
    /// Which change of policy this is: what was looked up under another one is not opened.
    turn: u64,
}

impl Gate {
    /// One whose sets are as they are; only the names are new here.
    pub(super) fn new(netfilter: Netfilter, names: Names) -> Self {
        Self { state: Mutex::new(State { netfilter, names: Arc::new(names), turn: 0 }) }
    }

    /// From now on the filter holds. Where it fails what held before holds still.
    pub(super) fn enforce(&self, filter: Filter) -> io::Result<()> {
        let mut state = self.lock();
        state.netfilter.enforce(&filter)?;
        state.names = Arc::new(filter.names);
        state.turn += 1;
        Ok(())
    }

    /// Which names resolve, and the turn in which that is so.
    pub(super) fn names(&self) -> (Arc<Names>, u64) {
        let state = self.lock();
        (Arc::clone(&state.names), state.turn)
    }

    /// Opens what a name stood for; false where the policy is another one by now.
    pub(super) fn open_answers(
        &self,
        turn: u64,
        answers: &[(IpAddr, Duration)],
        services: &[(u8, u16)],
    ) -> io::Result<bool> {
        let mut state = self.lock();
        if state.turn != turn {
            return Ok(false);
        }
        for &(address, lifetime) in answers {
            state.netfilter.open_answer(address, services, lifetime)?;
        }
        Ok(true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
