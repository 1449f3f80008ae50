//! Attributes the threads' waiting time to stacks. The stacks of only some waits are known, but the total
//! times are exact.
//!
//! Every long wait is reported individually. Of the short waits, one in `every` is sampled at random and counted
//! as `every` waits. The total time of a thread's short waits is known, and is distributed in proportion to the
//! sampled waits.

use rustc_hash::FxHashMap;

use super::Place;
use super::record::{Account, Mode, WaitEnd, WaitTime};

/// `LONG_NS` of offcpu.bpf.c.
const LONG_NS: u64 = 10_000_000;
/// Number of rows beyond which all further threads are combined into thread 0.
const MAX_ROWS: usize = 50_000;

/// The waits of one thread with one stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaceWaits {
    /// Estimated number of waits.
    pub waits: u64,
    /// Total time of the waits.
    pub ns: WaitTime,
}

/// The times of one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTimes {
    /// The thread id.
    pub tid: u32,
    /// The thread name.
    pub comm: String,
    /// Time on a CPU, ns.
    pub running: u64,
    /// Off-CPU time.
    pub waited: WaitTime,
}

/// The stack of a wait whose end has not been reported.
#[derive(Debug, Clone, Copy)]
struct Pending {
    place: Place,
    switches: u64,
}

/// Sums over the waits of one thread with one stack.
#[derive(Debug, Default)]
struct Sums {
    waits: u64,
    long: WaitTime,
    /// Time of the sampled long waits, each multiplied by its `every`.
    long_weighted: WaitTime,
    short: WaitTime,
    /// Time of the sampled short waits, each multiplied by its `every`.
    short_weighted: WaitTime,
}

#[derive(Debug, Default)]
struct Thread {
    places: FxHashMap<Place, Sums>,
    /// Time of long waits without a stack.
    without_stack: WaitTime,
}

/// Collects waits and distributes the waiting time among their stacks.
#[derive(Debug, Default)]
pub struct Waits {
    pending: FxHashMap<u32, Pending>,
    threads: FxHashMap<u32, Thread>,
    /// The result by thread and place. The place is `None` for time without a stack.
    pub rows: FxHashMap<(u32, Option<Place>), PlaceWaits>,
    /// The times of the completed threads.
    pub times: Vec<ThreadTimes>,
    /// Total time of the waits whose stack was captured.
    pub seen: WaitTime,
}

impl Waits {
    /// Record that a wait with this stack has begun or is in progress.
    pub fn begins(&mut self, tid: u32, place: Place, switches: u64) {
        self.pending.insert(tid, Pending { place, switches });
    }

    /// Return true if this wait of the thread or a later one is known.
    pub fn is_known(&self, tid: u32, switches: u64) -> bool {
        self.pending.get(&tid).is_some_and(|known| known.switches >= switches)
    }

    /// Record the end of a wait.
    pub fn ends(&mut self, tid: u32, end: WaitEnd) {
        let known = self.pending.remove(&tid).filter(|known| known.switches == end.switches);
        if end.ns == WaitTime::default() {
            return; // the wait ended before the profile began
        }
        let long = end.ns.blocked + end.ns.runnable >= LONG_NS;
        self.count(tid, known.map(|known| known.place), end, long);
    }

    /// Forget the waits of a thread, because a sampled statement has begun.
    pub fn statement_begins(&mut self, tid: u32) {
        self.threads.remove(&tid);
    }

    /// Return the off-CPU time of the statement that the thread has just finished, by place. The times add up to
    /// `waited`. The place is `None` for time without a stack.
    pub fn statement_ends(&mut self, tid: u32, waited: WaitTime) -> Vec<(Option<Place>, WaitTime)> {
        let thread = self.threads.remove(&tid).unwrap_or_default();
        thread.distribute(waited).into_iter().map(|(place, share)| (place, share.ns)).collect()
    }

    /// Use the stack of a wait that was not chosen at random, with little weight: it matters only if few of the
    /// thread's waits were chosen.
    pub fn hint(&mut self, tid: u32, place: Place, ns: WaitTime) {
        let sums = self.threads.entry(tid).or_default().places.entry(place).or_default();
        sums.long_weighted = sums.long_weighted.plus(ns);
        sums.short_weighted = sums.short_weighted.plus(ns);
    }

    fn count(&mut self, tid: u32, place: Option<Place>, end: WaitEnd, long: bool) {
        let thread = self.threads.entry(tid).or_default();
        let Some(place) = place else {
            if long {
                thread.without_stack = thread.without_stack.plus(end.ns);
            }
            return;
        };
        let sums = thread.places.entry(place).or_default();
        sums.waits += end.every.max(1);
        if long {
            sums.long = sums.long.plus(end.ns);
            sums.long_weighted = sums.long_weighted.plus(end.ns.times(end.every));
        } else {
            sums.short = sums.short.plus(end.ns);
            sums.short_weighted = sums.short_weighted.plus(end.ns.times(end.every));
        }
    }

    /// Complete a thread, at its exit or at the end of the profile: convert its waits to rows that add up to
    /// its times.
    pub fn settle(&mut self, tid: u32, comm: String, account: &Account, at: u64) {
        let Account { mode, running, waited, wait, switches, .. } = account.until(at);
        let known = self.pending.remove(&tid).filter(|known| known.switches == switches);
        if mode != Mode::Running {
            let end = WaitEnd { switches, ns: wait, every: 0 };
            let long = known.is_some() || wait.blocked + wait.runnable >= LONG_NS;
            self.count(tid, known.map(|known| known.place), end, long);
        }
        let thread = self.threads.remove(&tid).unwrap_or_default();
        let tid = if self.rows.len() < MAX_ROWS { tid } else { 0 };
        for sums in thread.places.values() {
            self.seen = self.seen.plus(sums.long).plus(sums.short);
        }
        for (place, share) in thread.distribute(waited) {
            self.add(tid, place, share);
        }
        self.add_times(ThreadTimes { tid, comm, running, waited });
    }

    fn add_times(&mut self, times: ThreadTimes) {
        match self.times.iter_mut().find(|known| times.tid == 0 && known.tid == 0) {
            Some(others) => {
                others.running += times.running;
                others.waited = others.waited.plus(times.waited);
            }
            None => self.times.push(times),
        }
    }

    fn add(&mut self, tid: u32, place: Option<Place>, share: PlaceWaits) {
        let row = self.rows.entry((tid, place)).or_default();
        row.waits += share.waits;
        row.ns = row.ns.plus(share.ns);
    }
}

impl Thread {
    /// Distribute the thread's off-CPU time among the stacks of its sampled waits.
    fn distribute(&self, total: WaitTime) -> Vec<(Option<Place>, PlaceWaits)> {
        let blocked = Split::of(self, total.blocked, |ns| ns.blocked);
        let runnable = Split::of(self, total.runnable, |ns| ns.runnable);
        let mut left = total;
        let mut shares = Vec::with_capacity(self.places.len() + 1);
        for (place, sums) in &self.places {
            let ns = WaitTime {
                blocked: blocked.part(sums, |ns| ns.blocked).min(left.blocked),
                runnable: runnable.part(sums, |ns| ns.runnable).min(left.runnable),
            };
            left = WaitTime { blocked: left.blocked - ns.blocked, runnable: left.runnable - ns.runnable };
            shares.push((Some(*place), PlaceWaits { waits: sums.waits, ns }));
        }
        if left != WaitTime::default() {
            shares.push((None, PlaceWaits { waits: 0, ns: left }));
        }
        shares
    }
}

/// The factors by which a thread's blocked or runnable time is distributed among stacks.
struct Split {
    /// Ratio of the total time of short waits to the weighted time of sampled short waits.
    short: f64,
    /// Ratio of the time of long waits without a stack to the weighted time of sampled long waits.
    without_stack: f64,
}

impl Split {
    fn of(thread: &Thread, total: u64, which: fn(WaitTime) -> u64) -> Self {
        let sum =
            |part: fn(&Sums) -> WaitTime| thread.places.values().map(|sums| which(part(sums))).sum::<u64>();
        let without_stack = which(thread.without_stack);
        let short = total.saturating_sub(sum(|sums| sums.long)).saturating_sub(without_stack);
        Self {
            short: ratio(short, sum(|sums| sums.short_weighted)),
            without_stack: ratio(without_stack, sum(|sums| sums.long_weighted)),
        }
    }

    fn part(&self, sums: &Sums, which: fn(WaitTime) -> u64) -> u64 {
        let shared = self.short * float(which(sums.short_weighted))
            + self.without_stack * float(which(sums.long_weighted));
        which(sums.long) + shared.round() as u64
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

/// Convert ns to a float, which is exact below 104 days.
#[allow(clippy::cast_precision_loss)]
fn float(value: u64) -> f64 {
    value as f64
}

impl WaitTime {
    fn plus(self, other: Self) -> Self {
        Self { blocked: self.blocked + other.blocked, runnable: self.runnable + other.runnable }
    }

    fn times(self, factor: u64) -> Self {
        Self { blocked: self.blocked * factor, runnable: self.runnable * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Trust;

    const MS: u64 = 1_000_000;

    fn place(stack: u32) -> Place {
        Place { stack, trust: Trust::Exact, syscall: -1, file: -1 }
    }

    fn end(switches: u64, blocked: u64, every: u64) -> WaitEnd {
        WaitEnd { switches, ns: WaitTime { blocked, runnable: 0 }, every }
    }

    fn account(mode: Mode, running: u64, blocked: u64) -> Account {
        let waited = WaitTime { blocked, runnable: 0 };
        Account { mode, since: 100 * MS, running, waited, wait: waited, switches: 9 }
    }

    #[test]
    fn distributes_the_time_of_short_waits_in_proportion_to_the_sampled_ones() {
        let mut waits = Waits::default();
        for (switches, stack, blocked) in [(1, 1, 3 * MS), (2, 2, MS)] {
            waits.begins(7, place(stack), switches);
            waits.ends(7, end(switches, blocked, 10));
        }
        waits.settle(7, "t".into(), &account(Mode::Running, 20 * MS, 80 * MS), 100 * MS);
        assert_eq!(waits.rows[&(7, Some(place(1)))].ns.blocked, 60 * MS);
        assert_eq!(waits.rows[&(7, Some(place(2)))].ns.blocked, 20 * MS);
        assert_eq!(waits.times[0].waited.blocked + waits.times[0].running, 100 * MS);
        assert_eq!(waits.seen.blocked, 4 * MS);
    }

    #[test]
    fn keeps_long_waits_as_measured_and_reports_time_without_a_stack() {
        let mut waits = Waits::default();
        waits.begins(7, place(1), 1);
        waits.ends(7, end(1, 50 * MS, 0));
        waits.ends(7, end(2, 30 * MS, 0));
        waits.settle(7, "t".into(), &account(Mode::Running, 20 * MS, 80 * MS), 100 * MS);
        assert_eq!(waits.rows[&(7, Some(place(1)))].ns.blocked, 50 * MS);
        assert_eq!(waits.rows[&(7, None)].ns.blocked, 30 * MS);
    }

    #[test]
    fn a_wait_in_progress_counts_until_the_end() {
        let mut waits = Waits::default();
        waits.begins(7, place(1), 9);
        assert!(waits.is_known(7, 9) && !waits.is_known(7, 10));
        waits.settle(7, "t".into(), &account(Mode::Blocked, 100 * MS, 0), 300 * MS);
        assert_eq!(waits.rows[&(7, Some(place(1)))].ns.blocked, 200 * MS);
    }

    #[test]
    fn the_stack_of_another_wait_is_not_used() {
        let mut waits = Waits::default();
        waits.begins(7, place(1), 8);
        waits.settle(7, "t".into(), &account(Mode::Blocked, 100 * MS, 0), 300 * MS);
        assert_eq!(waits.rows[&(7, None)].ns.blocked, 200 * MS);
    }
}
