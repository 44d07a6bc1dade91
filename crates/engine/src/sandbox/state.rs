//! What an event means in a state. No I/O, no time, no locks: everything else obeys this table.
//!
//! ```text
//! starting ──► running ──► pausing ──► paused       a pause or a continuation that fails goes back
//!     │         │   ▲                    │
//!     │         │   └───── resuming ◄────┤
//!     │         ├────────────────────────┼──► ended    by itself: listed with its reason until it is killed
//!     ▼         ▼                        │      │
//!  stopping ◄───┴────────────────────────┴──────┘      killed: ends, is removed, is forgotten
//! ```
//!
//! Where it is pausing or resuming a kill waits until that has gone one way or the other.

/// Where a sandbox is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Its monitor starts, restores, and its agent takes its identity.
    Starting,
    /// Its workload runs.
    Running,
    /// It is being taken to the disk.
    Pausing,
    /// It is on the disk, and has no monitor.
    Paused,
    /// It is being continued.
    Resuming,
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
    /// It is to be taken to the disk.
    PauseAsked,
    /// It is to be continued.
    ResumeAsked,
    /// Pausing or resuming has come to its end.
    Done,
    /// Pausing or resuming failed: everything is as before.
    NotDone,
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
    /// Write it to the disk and end its monitor.
    Park,
    /// Continue it with another monitor.
    Wake,
    /// Show where it is now.
    Show,
    /// Say that this is not possible now.
    Refuse,
    /// Nothing.
    Nothing,
}

impl Life {
    /// As clients see it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Resuming => "resuming",
            Self::Stopping => "stopping",
            Self::Ended => "ended",
        }
    }

    /// Whether there is a process whose end means something.
    pub(super) fn is_watched(self) -> bool {
        // What becomes of one that ends while it is paused or continued is decided when that has come to its end.
        matches!(self, Self::Starting | Self::Running)
    }
}

/// The next state and what to do.
pub(crate) fn decide(life: Life, event: Event) -> (Life, Step) {
    use Event::{
        Committed, Done, Failed, KillAsked, NotDone, NotRemoved, PauseAsked, ProcessEnded, ResumeAsked,
    };
    use Life::{Ended, Paused, Pausing, Resuming, Running, Starting, Stopping};
    match (life, event) {
        (Starting, Committed) => (Running, Step::Release),
        // Nobody knows it yet, so there is nobody to keep its end for.
        (Starting, Failed | KillAsked | ProcessEnded) => (Stopping, Step::Remove),
        (Running, PauseAsked) => (Pausing, Step::Park),
        (Pausing, Done) | (Resuming, NotDone) => (Paused, Step::Show),
        (Paused, ResumeAsked) => (Resuming, Step::Wake),
        (Resuming, Done) | (Pausing, NotDone) => (Running, Step::Show),
        (_, PauseAsked | ResumeAsked) => (life, Step::Refuse),
        (Running | Paused | Ended, KillAsked) => (Stopping, Step::Remove),
        (Running, ProcessEnded) => (Ended, Step::Bury),
        (Stopping, NotRemoved) => (Ended, Step::List),
        // A second kill waits for the first.
        (Stopping, KillAsked | ProcessEnded) => (Stopping, Step::Nothing),
        (Pausing | Resuming, KillAsked | ProcessEnded) => (life, Step::Nothing),
        (Paused | Ended, ProcessEnded) => (life, Step::Nothing),
        (Running | Pausing | Paused | Resuming | Stopping | Ended, Committed | Failed) => {
            (life, Step::Nothing)
        }
        (Starting | Running | Pausing | Paused | Resuming | Ended, NotRemoved) => (life, Step::Nothing),
        (Starting | Running | Paused | Stopping | Ended, Done | NotDone) => (life, Step::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const EVENTS: [Event; 9] = [
        Event::Committed,
        Event::Failed,
        Event::KillAsked,
        Event::ProcessEnded,
        Event::NotRemoved,
        Event::PauseAsked,
        Event::ResumeAsked,
        Event::Done,
        Event::NotDone,
    ];

    fn events() -> impl Strategy<Value = Vec<Event>> {
        prop::collection::vec(prop::sample::select(EVENTS.to_vec()), 0..40)
    }

    proptest! {
        #[test]
        fn whatever_happened_a_kill_leads_to_removal(before in events()) {
            let mut life = before.iter().fold(Life::Starting, |life, &event| decide(life, event).0);
            if matches!(life, Life::Pausing | Life::Resuming) {
                prop_assert_eq!(decide(life, Event::KillAsked), (life, Step::Nothing));
                life = decide(life, Event::NotDone).0;
            }
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
    }

    #[test]
    fn a_pause_goes_one_way_or_back_and_so_does_what_follows_it() {
        let after = |events: &[Event]| events.iter().fold(Life::Running, |life, &e| decide(life, e).0);
        use Event::{Done, NotDone, PauseAsked, ProcessEnded, ResumeAsked};
        assert_eq!(after(&[PauseAsked, Done]), Life::Paused);
        assert_eq!(after(&[PauseAsked, NotDone]), Life::Running);
        assert_eq!(after(&[PauseAsked, ProcessEnded, Done, ResumeAsked, NotDone]), Life::Paused);
        assert_eq!(after(&[PauseAsked, Done, ResumeAsked, Done]), Life::Running);
        for (life, event) in
            [(Life::Paused, PauseAsked), (Life::Running, ResumeAsked), (Life::Pausing, PauseAsked)]
        {
            assert_eq!(decide(life, event), (life, Step::Refuse));
        }
    }
}
