//! How durations are spread.

use std::time::Duration;

use serde::Serialize;

/// Percentiles, microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub(crate) struct Spread {
    /// How many there were.
    pub(crate) count: usize,
    /// Half took no longer.
    pub(crate) p50_us: u64,
    /// Nine in ten took no longer.
    pub(crate) p90_us: u64,
    /// 99 in a hundred took no longer.
    pub(crate) p99_us: u64,
    /// The longest.
    pub(crate) max_us: u64,
}

impl Spread {
    /// Of `all`, by the nearest rank.
    pub(crate) fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let rank = |percent: usize| {
            let rank = (all.len() * percent).div_ceil(100).max(1);
            all.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            count: all.len(),
            p50_us: rank(50),
            p90_us: rank(90),
            p99_us: rank(99),
            max_us: all.last().copied().unwrap_or_default(),
        }
    }
}

/// A duration in whole microseconds.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The mean; 0 of nothing.
pub(crate) fn mean(all: impl ExactSizeIterator<Item = u64>) -> u64 {
    let count = all.len() as u64;
    all.fold(0u64, u64::saturating_add).checked_div(count).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=100).rev().collect());
        assert_eq!((spread.p50_us, spread.p90_us, spread.p99_us, spread.max_us), (50, 90, 99, 100));
        let few = Spread::of(vec![7, 3]);
        assert_eq!((few.count, few.p50_us, few.p90_us, few.p99_us, few.max_us), (2, 3, 7, 7, 7));
        assert_eq!(Spread::of(vec![]), Spread::default());
    }

    #[test]
    fn the_mean_of_nothing_is_nothing() {
        assert_eq!(mean([1, 2, 6].into_iter()), 3);
        assert_eq!(mean([].into_iter()), 0);
    }
}
