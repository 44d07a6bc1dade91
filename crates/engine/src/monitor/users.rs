//! The user that each monitor is: one that nobody else is, as long as it lives.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::UserRange;

/// Users that are given out in turn, so that one that has just become free is used again last: a writer may outlive
/// its monitor.
#[derive(Debug)]
pub(super) struct Users {
    range: UserRange,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    taken: HashSet<u32>,
    next: u32,
}

/// A user that is nobody else's until this is dropped.
#[derive(Debug)]
pub(super) struct User {
    id: u32,
    users: Arc<Users>,
}

impl Users {
    /// Whoever is in the range now and is no monitor of ours stays passed over.
    pub(super) fn new(range: UserRange) -> Arc<Self> {
        Self::beside(range, living().filter(|&id| range.contains(id)).collect())
    }

    fn beside(range: UserRange, taken: HashSet<u32>) -> Arc<Self> {
        // Not where a controller before us began, whose writers may still be at work.
        let offset = uuid::Uuid::new_v4().as_u128() % u128::from(range.count);
        let next = range.first + u32::try_from(offset).unwrap_or(0);
        Arc::new(Self { range, state: Mutex::new(State { taken, next }) })
    }

    /// One that is free; `None` where all are taken.
    pub(super) fn take(self: &Arc<Self>) -> Option<User> {
        let mut state = self.lock();
        for _ in 0..self.range.count {
            let id = state.next;
            state.next = if self.range.contains(id + 1) { id + 1 } else { self.range.first };
            if state.taken.insert(id) {
                return Some(User { id, users: Arc::clone(self) });
            }
        }
        None
    }

    /// That of a monitor which was found again; `None` where it is none of ours.
    pub(super) fn found(self: &Arc<Self>, id: u32) -> Option<User> {
        self.range.contains(id).then(|| {
            self.lock().taken.insert(id);
            User { id, users: Arc::clone(self) }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl User {
    pub(super) fn id(&self) -> u32 {
        self.id
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.users.lock().taken.remove(&self.id);
    }
}

/// The users of all processes.
fn living() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes =
        entries.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    processes.filter_map(|entry| Some(entry.metadata().ok()?.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Arc<Users> {
        Users::beside(UserRange { first: 70_000, count: 3 }, HashSet::from([70_001]))
    }

    #[test]
    fn nobody_is_given_out_twice_and_what_is_free_again_comes_last() {
        let users = three();
        let (a, b) = (users.take().unwrap(), users.take().unwrap());
        assert_eq!(HashSet::from([a.id(), b.id()]), HashSet::from([70_000, 70_002]));
        assert!(users.take().is_none(), "one is a stranger's");
        let freed = a.id();
        drop(a);
        assert_eq!(users.take().unwrap().id(), freed);
    }

    #[test]
    fn who_was_found_again_is_taken_until_its_monitor_is_gone() {
        let users = three();
        assert!(users.found(0).is_none());
        let found = users.found(70_001).unwrap();
        let others = [users.take().unwrap(), users.take().unwrap()];
        assert!(users.take().is_none());
        drop(found);
        assert_eq!(users.take().unwrap().id(), 70_001);
        drop(others);
    }
}
