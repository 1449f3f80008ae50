//! Chooses the threads that a snapshot copies completely if all stacks together exceed its budget.

use super::RawThread;

/// Assumed stack size per thread, in bytes, if a snapshot copied no stack completely.
const USUAL_BYTES: u64 = 16 << 10;

/// Divides the threads into groups by thread id. Each snapshot copies one group completely, and the groups
/// rotate.
///
/// The number of groups is a power of two, and changes from snapshot to snapshot. A thread that would be
/// selected with more groups is also selected with fewer. Therefore no thread waits for more snapshots than the
/// largest number of groups. If the numbers were not powers of two, some threads could wait forever.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    budget: u64,
    groups: u64,
    snapshots: u64,
    /// Number of threads that this snapshot has copied completely.
    complete: u64,
    /// Number of stack bytes of these threads.
    bytes: u64,
    /// Number of threads that this snapshot has copied only partly.
    shallow: u64,
}

impl Rotation {
    /// Start a snapshot; return the number of groups and the group to copy completely.
    pub(super) fn begin(&mut self, budget: u64) -> (u32, u32) {
        self.budget = budget;
        self.snapshots += 1;
        (self.complete, self.bytes, self.shallow) = (0, 0, 0);
        let groups = self.groups.max(1);
        (groups as u32, (self.snapshots % groups) as u32)
    }

    /// Count a thread, and return the bytes of the budget that it used.
    pub(super) fn count(&mut self, thread: &RawThread) -> u64 {
        if thread.shallow {
            self.shallow += 1;
        } else if !thread.unchanged {
            self.complete += 1;
            self.bytes += thread.stack.len() as u64;
            return thread.stack.len() as u64;
        }
        0
    }

    /// End a snapshot: the next one uses as many groups as this one would have needed. The number falls by at
    /// most half, because many threads may run again after a quiet snapshot.
    pub(super) fn finish(&mut self) {
        let each = self.bytes.checked_div(self.complete).unwrap_or(USUAL_BYTES);
        let needed = self.bytes.saturating_add(self.shallow.saturating_mul(each));
        // Groups differ in size: the margin keeps a large group from exceeding the budget each time.
        let needed = needed.saturating_add(needed / 8);
        let groups = needed.div_ceil(self.budget.max(1)).min(1 << 16);
        self.groups = groups.next_power_of_two().max(self.groups / 2);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::snapshot::{Consistency, Registers};

    const STACK: u64 = 10_000;

    fn thread(tid: u32, bytes: usize, shallow: bool) -> RawThread {
        RawThread {
            tid,
            ns_tid: tid,
            state: 'S',
            comm: String::new(),
            consistency: Consistency::Consistent,
            switches: 0,
            ran: 0,
            registers: Registers::default(),
            syscall: -1,
            arg0: 0,
            stack: vec![0; bytes].into(),
            kernel: Vec::new(),
            returns: Vec::new(),
            unchanged: false,
            shallow,
            stack_wanted: 0,
        }
    }

    /// Simulate the BPF program; return the ids of the threads that were copied completely.
    fn snapshot(rotation: &mut Rotation, ids: impl Iterator<Item = u32>, budget: u64) -> HashSet<u32> {
        let (count, turn) = rotation.begin(budget);
        let mut left = budget;
        let mut complete = HashSet::new();
        for id in ids {
            let shallow = left < 2 * STACK || id % count != turn;
            let bytes = if shallow { 1_000 } else { STACK as usize };
            left -= rotation.count(&thread(id, bytes, shallow));
            if !shallow {
                complete.insert(id);
            }
        }
        rotation.finish();
        assert!(complete.len() as u64 * STACK <= budget);
        complete
    }

    #[test]
    fn threads_within_the_budget_are_copied_in_each_snapshot() {
        let mut rotation = Rotation::default();
        for _ in 0..5 {
            assert_eq!(snapshot(&mut rotation, 0..100, 200 * STACK).len(), 100);
        }
    }

    #[test]
    fn each_thread_has_its_turn_in_any_order_of_visits() {
        let order = || (5_000..9_000).chain(100..1_100);
        let mut rotation = Rotation::default();
        snapshot(&mut rotation, order(), 1_000 * STACK);
        let mut copied = HashSet::new();
        for _ in 0..12 {
            copied.extend(snapshot(&mut rotation, order(), 1_000 * STACK));
        }
        assert_eq!(copied.len(), order().count());
    }

    #[test]
    fn each_thread_has_its_turn_while_the_number_of_running_threads_varies() {
        let mut rotation = Rotation::default();
        let mut copied = HashSet::new();
        for moving in [6_000, 4_000, 5_000, 3_000].into_iter().cycle().take(9) {
            copied.extend(snapshot(&mut rotation, 100..100 + moving, 1_000 * STACK));
        }
        assert!((100..3_100).all(|id| copied.contains(&id)));
    }

    #[test]
    fn a_budget_below_one_stack_copies_no_thread_completely() {
        let mut rotation = Rotation::default();
        for _ in 0..3 {
            assert!(snapshot(&mut rotation, 0..10, 1).is_empty());
        }
    }
}
