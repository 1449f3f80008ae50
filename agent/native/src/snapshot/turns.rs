//! Which threads a snapshot copies whole when all together exceed its budget.

use super::RawThread;

/// A guess at the stack bytes of one thread, until one is copied.
const USUAL_BYTES: u64 = 16 << 10;

/// Spreads the threads over several snapshots by their ids: each is copied whole in one of `parts`.
///
/// `parts` is a power of two. As it changes from snapshot to snapshot, a thread's turn with more parts stays its
/// turn with fewer, so none waits longer than the most parts. With other numbers some threads could wait for good.
#[derive(Debug, Default)]
pub(super) struct Turns {
    budget: u64,
    parts: u64,
    number: u64,
    /// Threads copied whole by this snapshot, their bytes, and threads that were not.
    whole: u64,
    bytes: u64,
    shallow: u64,
}

impl Turns {
    /// Starts a snapshot: into how many turns the threads are divided, and whose turn it is.
    pub(super) fn begin(&mut self, budget: u64) -> (u32, u32) {
        self.budget = budget;
        self.number += 1;
        (self.whole, self.bytes, self.shallow) = (0, 0, 0);
        let turns = self.parts.max(1);
        (turns as u32, (self.number % turns) as u32)
    }

    /// Counts a thread; the bytes of the budget that it took.
    pub(super) fn count(&mut self, thread: &RawThread) -> u64 {
        if thread.shallow {
            self.shallow += 1;
        } else if !thread.unchanged {
            self.whole += 1;
            self.bytes += thread.stack.len() as u64;
            return thread.stack.len() as u64;
        }
        0
    }

    /// Ends a snapshot: the next one has as many turns as this one needed. Their number falls slowly, as many threads
    /// may move again after a quiet snapshot.
    pub(super) fn finish(&mut self) {
        let each = self.bytes.checked_div(self.whole).unwrap_or(USUAL_BYTES);
        let needed = self.bytes.saturating_add(self.shallow.saturating_mul(each));
        // Turns are not all as large: with some room none of them exceeds the budget for good.
        let needed = needed.saturating_add(needed / 8);
        let parts = needed.div_ceil(self.budget.max(1)).min(1 << 16);
        self.parts = parts.next_power_of_two().max(self.parts / 2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::snapshot::{Motion, Registers};

    const STACK: u64 = 10_000;

    fn thread(tid: u32, bytes: usize, shallow: bool) -> RawThread {
        RawThread {
            tid,
            ns_tid: tid,
            state: 'S',
            comm: String::new(),
            motion: Motion::Still,
            switches: 0,
            registers: Registers::default(),
            syscall: -1,
            arg0: 0,
            stack: vec![0; bytes].into(),
            kernel: Vec::new(),
            returns: Vec::new(),
            unchanged: false,
            shallow,
        }
    }

    /// Copies as the program does; the ids that were copied whole.
    fn snapshot(turns: &mut Turns, ids: impl Iterator<Item = u32>, budget: u64) -> HashSet<u32> {
        let (count, turn) = turns.begin(budget);
        let mut left = budget;
        let mut whole = HashSet::new();
        for id in ids {
            let shallow = left < 2 * STACK || id % count != turn;
            let bytes = if shallow { 1_000 } else { STACK as usize };
            left -= turns.count(&thread(id, bytes, shallow));
            if !shallow {
                whole.insert(id);
            }
        }
        turns.finish();
        assert!(whole.len() as u64 * STACK <= budget);
        whole
    }

    #[test]
    fn threads_that_fit_are_copied_at_each_snapshot() {
        let mut turns = Turns::default();
        for _ in 0..5 {
            assert_eq!(snapshot(&mut turns, 0..100, 200 * STACK).len(), 100);
        }
    }

    #[test]
    fn each_thread_has_its_turn_in_whatever_order_they_are_visited() {
        let order = || (5_000..9_000).chain(100..1_100);
        let mut turns = Turns::default();
        snapshot(&mut turns, order(), 1_000 * STACK);
        let mut copied = HashSet::new();
        for _ in 0..12 {
            copied.extend(snapshot(&mut turns, order(), 1_000 * STACK));
        }
        assert_eq!(copied.len(), order().count());
    }

    #[test]
    fn each_thread_has_its_turn_however_many_others_move() {
        let mut turns = Turns::default();
        let mut copied = HashSet::new();
        for moving in [6_000, 4_000, 5_000, 3_000].into_iter().cycle().take(9) {
            copied.extend(snapshot(&mut turns, 100..100 + moving, 1_000 * STACK));
        }
        assert!((100..3_100).all(|id| copied.contains(&id)));
    }

    #[test]
    fn a_budget_below_one_stack_copies_none_and_ends() {
        let mut turns = Turns::default();
        for _ in 0..3 {
            assert!(snapshot(&mut turns, 0..10, 1).is_empty());
        }
    }
}
