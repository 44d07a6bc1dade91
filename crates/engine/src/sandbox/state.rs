//! What an event means in a state. No I/O, no time, no locks: everything else obeys this table.
//!
//! ```text
//! starting ──► running ◄─► paused
//!     │           │           │
//!     │           ├───────────┴──► ended      by itself: listed with its reason until it is killed
//!     ▼           ▼                  │
//!  stopping ◄─────┴──────────────────┘        killed: ends, is removed, is forgotten
//! ```
//!
//! A sandbox found paused when a controller starts stays paused until somebody resumes it.

use forkd_protocol::control::Phase;

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its monitor starts, restores, and its agent takes its identity.
    Starting,
    /// Its workload runs.
    Running,
    /// Its vCPUs stand still.
    Paused,
    /// It is being removed.
    Stopping,
    /// It ended by itself, or could not be removed.
    Ended,
}

/// What can happen to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// All children of its request answered, and its row is written.
    Committed,
    /// It could not be started.
    Failed,
    /// Somebody wants it gone.
    KillAsked,
    /// Its process ended.
    ProcessEnded,
    /// Its removal failed part-way.
    NotRemoved,
}

/// What is to be done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// From now on it outlives the engine.
    Release,
    /// End it and remove everything of it.
    Remove,
    /// Free what it holds and keep it listed.
    Bury,
    /// It stays listed, and killing it again tries again.
    List,
    /// Nothing.
    Nothing,
}

impl Life {
    /// As clients see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }

    /// What a monitor that was found says about itself; `None` for one that is nobody's sandbox.
    pub(crate) fn of_phase(phase: Phase) -> Option<Self> {
        match phase {
            Phase::Running => Some(Self::Running),
            Phase::Paused => Some(Self::Paused),
            Phase::Waiting | Phase::Ended => None,
        }
    }
}

/// The next state and what to do.
pub(crate) fn decide(life: Life, event: Event) -> (Life, Step) {
    use Event::{Committed, Failed, KillAsked, NotRemoved, ProcessEnded};
    use Life::{Ended, Paused, Running, Starting, Stopping};
    match (life, event) {
        (Starting, Committed) => (Running, Step::Release),
        // Nobody knows it yet, so there is nobody to keep its end for.
        (Starting, Failed | KillAsked | ProcessEnded) => (Stopping, Step::Remove),
        (Running | Paused, KillAsked) => (Stopping, Step::Remove),
        (Running | Paused, ProcessEnded) => (Ended, Step::Bury),
        (Ended, KillAsked) => (Stopping, Step::Remove),
        (Stopping, NotRemoved) => (Ended, Step::List),
        // A second kill waits for the first.
        (Stopping, KillAsked | ProcessEnded) => (Stopping, Step::Nothing),
        (Running | Paused | Stopping | Ended, Committed | Failed) => (life, Step::Nothing),
        (Starting | Running | Paused | Ended, NotRemoved) => (life, Step::Nothing),
        (Ended, ProcessEnded) => (Ended, Step::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: [Event; 5] =
        [Event::Committed, Event::Failed, Event::KillAsked, Event::ProcessEnded, Event::NotRemoved];

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec(prop::sample::select(EVENTS.to_vec()), 0..40)
    }

    proptest! {
        #[test]
        fn whatever_happened_a_kill_leads_to_removal(before in events()) {
            let life = before.iter().fold(Life::Starting, |life, &event| decide(life, event).0);
            let (after, step) = decide(life, Event::KillAsked);
            prop_assert_eq!(after, Life::Stopping);
            prop_assert_eq!(step == Step::Remove, life != Life::Stopping);
        }

        #[test]
        fn what_ended_or_stops_never_runs_again(before in events(), after in events()) {
            let mut life = before.iter().fold(Life::Starting, |life, &event| decide(life, event).0);
            let over = matches!(life, Life::Stopping | Life::Ended);
            for event in after {
                life = decide(life, event).0;
                prop_assert!(!over || matches!(life, Life::Stopping | Life::Ended));
            }
        }

        #[test]
        fn each_life_is_released_at_most_once_and_removed_once_per_attempt(all in events()) {
            let (mut life, mut released, mut removing) = (Life::Starting, 0, false);
            for event in all {
                let (next, step) = decide(life, event);
                released += u32::from(step == Step::Release);
                if step == Step::Remove {
                    prop_assert!(!removing, "removed twice at once");
                }
                removing = next == Life::Stopping;
                life = next;
            }
            prop_assert!(released <= 1);
        }
    }

    #[test]
    fn a_death_while_starting_leaves_nothing_and_one_while_running_is_told() {
        assert_eq!(decide(Life::Starting, Event::ProcessEnded), (Life::Stopping, Step::Remove));
        assert_eq!(decide(Life::Running, Event::ProcessEnded), (Life::Ended, Step::Bury));
        assert_eq!(decide(Life::Paused, Event::ProcessEnded), (Life::Ended, Step::Bury));
    }
}
