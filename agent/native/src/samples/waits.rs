//! What threads wait for, from stacks of some waits and exact times of all.
//!
//! Long waits are all told, one by one. Of the short ones some were drawn by lot, one in `every`: each stands for
//! so many. What a thread's short waits took together is known, and is shared out by those that were drawn.

use rustc_hash::FxHashMap;

use super::Place;
use super::record::{Account, Mode, Spent, WaitEnd};

/// `LONG_NS` of offcpu.bpf.c.
const LONG_NS: u64 = 10_000_000;
/// Rows beyond which threads that ended are not told apart: they are thread 0.
const MOST_ROWS: usize = 50_000;

/// What some waits at one place come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    /// How many, estimated.
    pub waits: u64,
    /// How long.
    pub ns: Spent,
}

/// A thread's time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Times {
    /// Thread id.
    pub tid: u32,
    /// Thread name.
    pub comm: String,
    /// On a CPU, ns.
    pub running: u64,
    /// Off it.
    pub spent: Spent,
}

/// The stack of a wait that is not over, or not known to be.
#[derive(Debug, Clone, Copy)]
struct Pending {
    place: Place,
    switches: u64,
}

/// Waits of one thread at one place, by nanoseconds blocked and runnable.
#[derive(Debug, Default)]
struct Sums {
    waits: u64,
    long: Spent,
    /// Long ones that were drawn, times what each stands for.
    long_drawn: Spent,
    short: Spent,
    /// Short ones, times what each stands for.
    short_drawn: Spent,
}

#[derive(Debug, Default)]
struct Thread {
    places: FxHashMap<Place, Sums>,
    /// Long waits whose stack nobody saw.
    unseen: Spent,
}

/// Adds waits up.
#[derive(Debug, Default)]
pub struct Waits {
    pending: FxHashMap<u32, Pending>,
    threads: FxHashMap<u32, Thread>,
    /// By thread and place; without a place where no stack was seen.
    pub rows: FxHashMap<(u32, Option<Place>), Share>,
    /// Of the threads that are settled.
    pub times: Vec<Times>,
    /// Time of waits whose own stack was seen.
    pub seen: Spent,
}

impl Waits {
    /// A wait begins, or is under way, at this place.
    pub fn begins(&mut self, tid: u32, place: Place, switches: u64) {
        self.pending.insert(tid, Pending { place, switches });
    }

    /// Whether this wait of the thread, or a later one, is known.
    pub fn knows(&self, tid: u32, switches: u64) -> bool {
        self.pending.get(&tid).is_some_and(|known| known.switches >= switches)
    }

    /// A wait is over.
    pub fn ends(&mut self, tid: u32, end: WaitEnd) {
        let known = self.pending.remove(&tid).filter(|known| known.switches == end.switches);
        if end.ns == Spent::default() {
            return; // it was over before the profile began
        }
        let long = end.ns.blocked + end.ns.runnable >= LONG_NS;
        self.count(tid, known.map(|known| known.place), end, long);
    }

    fn count(&mut self, tid: u32, place: Option<Place>, end: WaitEnd, long: bool) {
        let thread = self.threads.entry(tid).or_default();
        let Some(place) = place else {
            if long {
                thread.unseen = thread.unseen.plus(end.ns);
            }
            return;
        };
        let sums = thread.places.entry(place).or_default();
        sums.waits += end.every.max(1);
        if long {
            sums.long = sums.long.plus(end.ns);
            sums.long_drawn = sums.long_drawn.plus(end.ns.times(end.every));
        } else {
            sums.short = sums.short.plus(end.ns);
            sums.short_drawn = sums.short_drawn.plus(end.ns.times(end.every));
        }
    }

    /// The thread is over, or the profile is: its waits become rows that add up to its times.
    pub fn settle(&mut self, tid: u32, comm: String, account: &Account, at: u64) {
        let Account { mode, running, spent, wait, switches, .. } = account.until(at);
        let known = self.pending.remove(&tid).filter(|known| known.switches == switches);
        if mode != Mode::Running {
            let end = WaitEnd { switches, ns: wait, every: 0 };
            let long = known.is_some() || wait.blocked + wait.runnable >= LONG_NS;
            self.count(tid, known.map(|known| known.place), end, long);
        }
        let thread = self.threads.remove(&tid).unwrap_or_default();
        let tid = if self.rows.len() < MOST_ROWS { tid } else { 0 };
        self.share_out(tid, &thread, spent);
        self.keep_times(Times { tid, comm, running, spent });
    }

    fn keep_times(&mut self, times: Times) {
        match self.times.iter_mut().find(|known| times.tid == 0 && known.tid == 0) {
            Some(others) => {
                others.running += times.running;
                others.spent = others.spent.plus(times.spent);
            }
            None => self.times.push(times),
        }
    }

    fn share_out(&mut self, tid: u32, thread: &Thread, total: Spent) {
        let blocked = Split::of(thread, total.blocked, |ns| ns.blocked);
        let runnable = Split::of(thread, total.runnable, |ns| ns.runnable);
        let mut left = total;
        for (place, sums) in &thread.places {
            let ns = Spent {
                blocked: blocked.part(sums, |ns| ns.blocked).min(left.blocked),
                runnable: runnable.part(sums, |ns| ns.runnable).min(left.runnable),
            };
            left = Spent { blocked: left.blocked - ns.blocked, runnable: left.runnable - ns.runnable };
            self.seen = self.seen.plus(sums.long).plus(sums.short);
            self.add(tid, Some(*place), Share { waits: sums.waits, ns });
        }
        if left != Spent::default() {
            self.add(tid, None, Share { waits: 0, ns: left });
        }
    }

    fn add(&mut self, tid: u32, place: Option<Place>, share: Share) {
        let row = self.rows.entry((tid, place)).or_default();
        row.waits += share.waits;
        row.ns = row.ns.plus(share.ns);
    }
}

/// How a thread's time, blocked or runnable, is shared out among places.
struct Split {
    /// Of the short waits, per nanosecond drawn.
    short: f64,
    /// Of the long ones that nobody saw, likewise.
    unseen: f64,
}

impl Split {
    fn of(thread: &Thread, total: u64, which: fn(Spent) -> u64) -> Self {
        let sum =
            |part: fn(&Sums) -> Spent| thread.places.values().map(|sums| which(part(sums))).sum::<u64>();
        let unseen = which(thread.unseen);
        let short = total.saturating_sub(sum(|sums| sums.long)).saturating_sub(unseen);
        Self {
            short: ratio(short, sum(|sums| sums.short_drawn)),
            unseen: ratio(unseen, sum(|sums| sums.long_drawn)),
        }
    }

    fn part(&self, sums: &Sums, which: fn(Spent) -> u64) -> u64 {
        let shared =
            self.short * float(which(sums.short_drawn)) + self.unseen * float(which(sums.long_drawn));
        which(sums.long) + shared.round() as u64
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { float(part) / float(whole) }
}

/// Nanoseconds: exact below 104 days.
#[allow(clippy::cast_precision_loss)]
fn float(value: u64) -> f64 {
    value as f64
}

impl Spent {
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
    use crate::look::Trust;

    const MS: u64 = 1_000_000;

    fn place(stack: u32) -> Place {
        Place { stack, trust: Trust::Exact, syscall: -1, file: -1 }
    }

    fn end(switches: u64, blocked: u64, every: u64) -> WaitEnd {
        WaitEnd { switches, ns: Spent { blocked, runnable: 0 }, every }
    }

    fn account(mode: Mode, running: u64, blocked: u64) -> Account {
        let spent = Spent { blocked, runnable: 0 };
        Account { mode, since: 100 * MS, running, spent, wait: spent, switches: 9 }
    }

    #[test]
    fn shares_the_time_of_short_waits_out_by_those_that_were_drawn() {
        let mut waits = Waits::default();
        for (switches, stack, blocked) in [(1, 1, 3 * MS), (2, 2, MS)] {
            waits.begins(7, place(stack), switches);
            waits.ends(7, end(switches, blocked, 10));
        }
        waits.settle(7, "t".into(), &account(Mode::Running, 20 * MS, 80 * MS), 100 * MS);
        assert_eq!(waits.rows[&(7, Some(place(1)))].ns.blocked, 60 * MS);
        assert_eq!(waits.rows[&(7, Some(place(2)))].ns.blocked, 20 * MS);
        assert_eq!(waits.times[0].spent.blocked + waits.times[0].running, 100 * MS);
        assert_eq!(waits.seen.blocked, 4 * MS);
    }

    #[test]
    fn takes_long_waits_as_they_are_and_says_what_nobody_saw() {
        let mut waits = Waits::default();
        waits.begins(7, place(1), 1);
        waits.ends(7, end(1, 50 * MS, 0));
        waits.ends(7, end(2, 30 * MS, 0));
        waits.settle(7, "t".into(), &account(Mode::Running, 20 * MS, 80 * MS), 100 * MS);
        assert_eq!(waits.rows[&(7, Some(place(1)))].ns.blocked, 50 * MS);
        assert_eq!(waits.rows[&(7, None)].ns.blocked, 30 * MS);
    }

    #[test]
    fn a_wait_that_is_not_over_counts_until_the_end() {
        let mut waits = Waits::default();
        waits.begins(7, place(1), 9);
        assert!(waits.knows(7, 9) && !waits.knows(7, 10));
        waits.settle(7, "t".into(), &account(Mode::Blocked, 100 * MS, 0), 300 * MS);
        assert_eq!(waits.rows[&(7, Some(place(1)))].ns.blocked, 200 * MS);
    }

    #[test]
    fn a_stack_of_another_wait_is_not_this_ones() {
        let mut waits = Waits::default();
        waits.begins(7, place(1), 8);
        waits.settle(7, "t".into(), &account(Mode::Blocked, 100 * MS, 0), 300 * MS);
        assert_eq!(waits.rows[&(7, None)].ns.blocked, 200 * MS);
    }
}
