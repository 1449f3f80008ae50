//! Limits the memory for the stacks of all observed processes together. An amount is reserved for each process, so
//! that hostile processes cannot use up what the others need.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::symbols::limits;

/// The budget for the names of functions, in bytes.
pub static NAMES: Budget =
    Budget::new(limits::SHOWN_NAMES_RESERVED, limits::SHOWN_NAMES_BYTES, limits::SHOWN_NAMES_SHARED);
/// The budget for the frames of distinct stacks.
pub static FRAMES: Budget =
    Budget::new(limits::STACK_FRAMES_RESERVED, limits::STACK_FRAMES, limits::STACK_FRAMES_SHARED);

/// A limit for each process, and one for all of them.
#[derive(Debug)]
pub struct Budget {
    /// The amount that each process may always use.
    reserved: usize,
    /// Maximum amount that one process may use.
    per_process: usize,
    /// Maximum amount that all processes may use in addition to their reserved amounts.
    shared: usize,
    /// The part of `shared` that is in use.
    in_use: AtomicUsize,
}

/// The limit that leaves no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The limit of one process.
    OfProcess,
    /// The limit that all processes share.
    Shared,
}

/// The amount that one process uses. Dropping this value returns the amount to the budget.
#[derive(Debug)]
pub struct Share {
    budget: &'static Budget,
    used: usize,
}

impl Budget {
    /// Create a budget that is not in use.
    pub const fn new(reserved: usize, per_process: usize, shared: usize) -> Self {
        Self { reserved, per_process, shared, in_use: AtomicUsize::new(0) }
    }
}

impl Share {
    /// Create an empty share of a budget.
    pub fn new(budget: &'static Budget) -> Self {
        Self { budget, used: 0 }
    }

    /// Return the amount in use.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Return the limit that leaves no room, or `None` if there is room.
    pub fn exhausted(&self) -> Option<Limit> {
        let budget = self.budget;
        if self.used >= budget.per_process {
            Some(Limit::OfProcess)
        } else if self.used >= budget.reserved && budget.in_use.load(Relaxed) >= budget.shared {
            Some(Limit::Shared)
        } else {
            None
        }
    }

    /// Use an additional amount. Call this only if there is room: the last amount may exceed the limit.
    pub fn add(&mut self, amount: usize) {
        let before = self.beyond_reserved();
        self.used += amount;
        self.budget.in_use.fetch_add(self.beyond_reserved() - before, Relaxed);
    }

    /// Return the whole amount to the budget.
    pub fn clear(&mut self) {
        self.budget.in_use.fetch_sub(self.beyond_reserved(), Relaxed);
        self.used = 0;
    }

    fn beyond_reserved(&self) -> usize {
        self.used.saturating_sub(self.budget.reserved)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_processes_together_stay_within_the_limit_and_each_has_its_reserved_amount() {
        static BUDGET: Budget = Budget::new(10, 100, 300);
        let fill = |share: &mut Share| {
            while share.exhausted().is_none() {
                share.add(1);
            }
        };
        let mut shares: Vec<Share> = (0..64).map(|_| Share::new(&BUDGET)).collect();
        shares.iter_mut().for_each(fill);
        assert_eq!(shares[0].exhausted(), Some(Limit::OfProcess));
        assert_eq!(shares[63].exhausted(), Some(Limit::Shared));
        assert_eq!(shares[63].used(), 10);
        assert_eq!(shares.iter().map(Share::used).sum::<usize>(), 64 * 10 + 300);
        shares[0].clear();
        assert_eq!(shares[63].exhausted(), None);
        drop(shares);
        assert_eq!(BUDGET.in_use.load(Relaxed), 0);
    }
}
