//! Random inputs for a time rather than for a number of cases.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// How long a target runs, milliseconds.
const BUDGET: &str = "FORKD_FUZZ_MILLIS";
/// Where nobody says otherwise.
const DEFAULT_MILLIS: u64 = 400;
/// Inputs between two looks at the clock.
const CASES: u32 = 16;

/// Runs `check` on inputs until the time is over; at least some. One that panics is made as short as can be, shown, and
/// fails the test.
///
/// # Panics
/// `check` does.
#[expect(clippy::panic, reason = "a test fails by panicking")]
pub fn fuzz<S: Strategy>(inputs: &S, check: impl Fn(&S::Value))
where
    S::Value: Debug,
{
    let millis = std::env::var(BUDGET).ok().and_then(|millis| millis.parse().ok()).unwrap_or(DEFAULT_MILLIS);
    let until = Instant::now() + Duration::from_millis(millis);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    loop {
        // One that has had its cases is done for good; the next has other inputs.
        let tried = TestRunner::new(config.clone()).run(inputs, |input| {
            check(&input);
            Ok::<_, TestCaseError>(())
        });
        if let Err(e) = tried {
            panic!("{e}");
        }
        if Instant::now() >= until {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn many_are_tried_and_what_fails_is_made_short() {
        let tried = AtomicU32::new(0);
        fuzz(&(0u32..10), |_| {
            tried.fetch_add(1, Ordering::Relaxed);
        });
        assert!(tried.into_inner() > 10 * CASES);
        let failed = std::panic::catch_unwind(|| fuzz(&(0u32..1000), |n| assert!(*n < 700))).unwrap_err();
        let shown = failed.downcast_ref::<String>().unwrap();
        assert!(shown.contains("minimal failing input: 700"), "{shown}");
    }
}
