//! Chooses the number of context switches per sampled stack.

use std::collections::VecDeque;

/// The possible numbers of switches per sample. Except for 1, they are prime, so that the samples do not coincide
/// with a pattern in the switches, such as the waits of one transaction.
const PERIODS: [u64; 15] = [1, 3, 7, 13, 29, 61, 127, 251, 509, 1021, 2039, 4093, 8191, 16381, 32749];
/// The period until the rate of switches is known.
pub(super) const FIRST_PERIOD: u64 = 127;
/// Minimum time between two changes of the period.
const ADJUST_NS: u64 = 100_000_000;
/// Number of earlier periods that are remembered.
const MAX_EARLIER_PERIODS: usize = 64;

/// The sampling period, which adapts to the rate of switches.
pub(super) struct Period {
    max_stacks: u64,
    /// The remembered periods as (time from which it applies, period), oldest first.
    periods: VecDeque<(u64, u64)>,
    /// Number of switches since `adjusted_at`, except switches of the idle task, which has no user stack.
    pub(super) switches: u64,
    pub(super) adjusted_at: u64,
}

impl Period {
    pub(super) fn new(max_stacks: u64) -> Self {
        let periods = VecDeque::from([(0, FIRST_PERIOD)]);
        Self { max_stacks: max_stacks.max(1), periods, switches: 0, adjusted_at: 0 }
    }

    fn current(&self) -> u64 {
        self.periods.back().map_or(FIRST_PERIOD, |(_, period)| *period)
    }

    /// Return the period at this time, or the oldest remembered period if the time is before all of them.
    pub(super) fn at(&self, at: u64) -> u64 {
        let found = self.periods.iter().rev().find(|(since, _)| *since <= at).or(self.periods.front());
        found.map_or(FIRST_PERIOD, |(_, period)| *period)
    }

    /// Return the new period if it must change. A period is shortened only if it is more than twice as long
    /// as necessary.
    pub(super) fn adjust(&mut self, now: u64) -> Option<u64> {
        let elapsed = now.saturating_sub(self.adjusted_at);
        if elapsed < ADJUST_NS {
            return None;
        }
        let rate = u128::from(self.switches) * 1_000_000_000 / u128::from(elapsed);
        let wanted = u64::try_from(rate / u128::from(self.max_stacks)).unwrap_or(u64::MAX);
        let period = PERIODS.into_iter().find(|period| *period >= wanted).unwrap_or(PERIODS[14]);
        (self.switches, self.adjusted_at) = (0, now);
        let current = self.current();
        if period <= current && period * 2 >= current {
            return None;
        }
        if self.periods.len() > MAX_EARLIER_PERIODS {
            self.periods.pop_front();
        }
        self.periods.push_back((now, period));
        Some(period)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_follows_the_rate_of_switches() {
        const SECOND: u64 = 1_000_000_000;
        let mut period = Period::new(1_000);
        period.switches = 10_000;
        assert_eq!(period.adjust(SECOND), Some(13));
        assert_eq!((period.at(SECOND - 1), period.at(SECOND)), (FIRST_PERIOD, 13));
        period.switches = 7_000;
        assert_eq!(period.adjust(2 * SECOND), None, "a little lower");
        period.switches = 900;
        assert_eq!(period.adjust(3 * SECOND), Some(1));
        period.switches = u64::MAX;
        assert_eq!(period.adjust(4 * SECOND), Some(32_749));
        assert_eq!(period.adjust(4 * SECOND + 1), None, "too early");
        for second in 5..500 {
            period.switches = if second % 2 == 0 { 0 } else { 40_000 };
            period.adjust(second * SECOND);
        }
        assert!(period.periods.len() <= MAX_EARLIER_PERIODS + 1);
    }
}
