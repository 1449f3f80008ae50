//! Measures waits from the context switches of a process's threads, for hosts that do not permit BPF.
//!
//! offcpu.bpf.c does the same in the kernel. Unlike that program, this module does not see wakeups: the time
//! between a thread's wakeup and its arrival on a CPU counts as blocked. If records were lost, the time until
//! the thread's next known event is attributed to the last known state.

use rustc_hash::FxHashMap;

use super::Place;
use super::record::{Account, Mode, WaitEnd, WaitTime};
use super::waits::Waits;

/// Minimum duration of a wait that snapshots cannot miss, because several snapshots are taken during the wait.
const CERTAIN_NS: u64 = 100_000_000;

/// An event of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The thread was created. Its parent has this id.
    Starts(u32),
    /// The stack of the wait that is about to begin; the stack of one wait in `every` is captured.
    Stack { place: Place, every: u64 },
    /// The thread left its CPU. If it was preempted, it could have continued to run.
    Leaves { preempted: bool },
    /// The thread was scheduled on a CPU.
    Arrives,
    /// The thread has waited since `since` or longer. A snapshot captured its stack.
    Waiting { place: Place, since: u64 },
    /// The thread exited.
    Exits,
}

/// An event of a thread, with its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed {
    /// The time of the event, in ns of CLOCK_MONOTONIC.
    pub at: u64,
    /// The thread id.
    pub tid: u32,
    /// The kind of event.
    pub event: Event,
}

/// Follows the threads of a process.
#[derive(Debug, Default)]
pub struct Switches {
    threads: FxHashMap<u32, Thread>,
    names: FxHashMap<u32, String>,
    /// The time at which the profile began.
    began: u64,
    /// Time between the last two snapshots, if the snapshots are the only source of stacks; otherwise 0.
    pub snapshot_interval: u64,
}

#[derive(Debug)]
struct Thread {
    account: Account,
    /// False until the first event shows in which state the thread was before.
    is_known: bool,
    /// The time at which the current wait began; 0 if it began before the thread's first event.
    waits_since: u64,
    /// The stack of the wait that is about to begin.
    next: Option<(Place, u64)>,
    /// True if the stack of the current wait was captured.
    has_stack: bool,
    /// One wait in `every` is captured, including the current one; 0 if the wait was not chosen.
    every: u64,
    /// The stack of the current wait, if it comes from a snapshot.
    snapshot: Option<Place>,
}

impl Switches {
    /// Set the time at which the profile begins. Earlier events only show the states of the threads.
    pub fn begin(&mut self, began: u64) {
        self.began = began;
        for thread in self.threads.values_mut() {
            thread.account.since = began;
        }
    }

    /// Register a thread that exists at the beginning. Its events since then may not have been applied yet.
    pub fn register(&mut self, tid: u32, name: String, is_runnable: bool) {
        let mode = if is_runnable { Mode::Running } else { Mode::Blocked };
        self.threads.insert(tid, Thread::new(mode, self.began));
        self.names.insert(tid, name);
    }

    /// Set the name of a thread.
    pub fn set_name(&mut self, tid: u32, name: String) {
        self.names.insert(tid, name);
    }

    /// Return the threads that are running or whose current wait has no stack.
    pub fn without_stack(&self) -> Vec<u32> {
        self.threads.iter().filter(|(_, thread)| !thread.has_stack).map(|(tid, _)| *tid).collect()
    }

    /// Apply the next event, in chronological order. Threads whose start is unknown are ignored: they have
    /// exited, or the record of their start was lost.
    pub fn apply(&mut self, Timed { at, tid, event }: Timed, waits: &mut Waits) {
        if let Event::Starts(parent) = event {
            let mut thread = Thread::new(Mode::Runnable, at.max(self.began));
            thread.is_known = true;
            thread.waits_since = at;
            self.threads.insert(tid, thread);
            let name = self.names.get(&parent).cloned().unwrap_or_default();
            self.names.entry(tid).or_insert(name);
            return;
        }
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        match event {
            Event::Starts(_) => {}
            Event::Stack { place, every } => thread.next = Some((place, every)),
            Event::Leaves { preempted } => thread.leaves(at, tid, preempted, self.snapshot_interval, waits),
            Event::Arrives => thread.arrives(at, tid, self.snapshot_interval, waits),
            Event::Waiting { place, since } => thread.waiting(place, since),
            Event::Exits => {
                let name = self.names.remove(&tid).unwrap_or_default();
                if at >= self.began {
                    thread.settle(tid, name, at, waits);
                }
                self.threads.remove(&tid);
            }
        }
    }

    /// Complete the accounting of all threads at the end of the profile.
    pub fn settle(&mut self, ended: u64, waits: &mut Waits) {
        for (tid, thread) in self.threads.drain() {
            let name = self.names.remove(&tid).unwrap_or_default();
            thread.settle(tid, name, ended, waits);
        }
    }
}

impl Thread {
    fn new(mode: Mode, since: u64) -> Self {
        let account = Account {
            mode,
            since,
            running: 0,
            waited: WaitTime::default(),
            wait: WaitTime::default(),
            switches: 0,
        };
        Self {
            account,
            is_known: false,
            waits_since: 0,
            next: None,
            has_stack: false,
            every: 0,
            snapshot: None,
        }
    }

    fn leaves(&mut self, at: u64, tid: u32, preempted: bool, interval: u64, waits: &mut Waits) {
        if !self.is_known {
            self.account.mode = Mode::Running;
        }
        self.account = self.account.until(at);
        if self.account.mode != Mode::Running {
            self.wait_ends(tid, interval, waits); // the arrival was lost
        }
        self.is_known = true;
        self.account.mode = if preempted { Mode::Runnable } else { Mode::Blocked };
        self.account.switches += 1;
        self.account.wait = WaitTime::default();
        self.waits_since = at;
        (self.has_stack, self.snapshot, self.every) = (false, None, 0);
        if let Some((place, every)) = self.next.take() {
            (self.has_stack, self.every) = (true, every);
            waits.begins(tid, place, self.account.switches);
        }
    }

    fn arrives(&mut self, at: u64, tid: u32, interval: u64, waits: &mut Waits) {
        if !self.is_known && self.account.mode == Mode::Running {
            self.account.mode = Mode::Runnable;
        }
        self.account = self.account.until(at);
        if self.account.mode != Mode::Running {
            self.wait_ends(tid, interval, waits);
        }
        self.is_known = true;
        self.account.mode = Mode::Running;
        (self.next, self.has_stack, self.snapshot) = (None, false, None);
    }

    fn waiting(&mut self, place: Place, since: u64) {
        if self.account.mode != Mode::Running && !self.has_stack && self.waits_since <= since {
            (self.has_stack, self.snapshot) = (true, Some(place));
        }
    }

    /// Finish a thread's accounting when it exits or the profile ends. If a snapshot captured the wait in
    /// progress, use the snapshot's stack.
    fn settle(&self, tid: u32, name: String, at: u64, waits: &mut Waits) {
        if let Some(place) = self.snapshot {
            waits.begins(tid, place, self.account.switches);
        }
        waits.settle(tid, name, &self.account, at);
    }

    /// Report the wait. Snapshots capture a wait with a probability that is proportional to its duration: on
    /// average, one wait in `interval / duration`. Snapshots do not capture a thread that was woken and is
    /// waiting for a CPU. Therefore, if stacks are also sampled, snapshots supply only the stacks of waits
    /// that they cannot miss.
    fn wait_ends(&self, tid: u32, interval: u64, waits: &mut Waits) {
        let Account { wait: ns, switches, .. } = self.account;
        let duration = ns.blocked + ns.runnable;
        let mut every = self.every;
        match self.snapshot {
            Some(place) if interval == 0 && duration < CERTAIN_NS => waits.hint(tid, place, ns),
            Some(place) => {
                waits.begins(tid, place, switches);
                every = if interval == 0 { 0 } else { ((interval + duration / 2) / duration.max(1)).max(1) };
            }
            None => {}
        }
        waits.ends(tid, WaitEnd { switches, ns, every });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::waits::ThreadTimes;
    use crate::snapshot::Trust;

    const MS: u64 = 1_000_000;
    const PARENT: u32 = 6;
    const TID: u32 = 7;
    const BLOCKS: Event = Event::Leaves { preempted: false };

    fn place(stack: u32) -> Place {
        Place { stack, trust: Trust::Exact, syscall: -1, file: -1 }
    }

    fn stack(stack: u32, every: u64) -> Event {
        Event::Stack { place: place(stack), every }
    }

    fn waiting(stack: u32, since_ms: u64) -> Event {
        Event::Waiting { place: place(stack), since: since_ms * MS }
    }

    /// Apply events of one thread, at times in ms, to a profile from 100 to 200 ms.
    fn profile(is_runnable: bool, interval_ms: u64, events: &[(u64, Event)]) -> Waits {
        let (mut switches, mut waits) = (Switches::default(), Waits::default());
        switches.snapshot_interval = interval_ms * MS;
        if !matches!(events.first(), Some((_, Event::Starts(_)))) {
            switches.register(TID, "t".into(), is_runnable);
        }
        switches.begin(100 * MS);
        switches.set_name(PARENT, "parent".into());
        for (at, event) in events {
            switches.apply(Timed { at: at * MS, tid: TID, event: *event }, &mut waits);
        }
        switches.settle(200 * MS, &mut waits);
        waits
    }

    /// Return the thread's times on a CPU, blocked and runnable, in ms.
    fn times(waits: &Waits) -> (u64, u64, u64) {
        let [ThreadTimes { running, waited, .. }] = &waits.times[..] else { panic!("one thread") };
        (running / MS, waited.blocked / MS, waited.runnable / MS)
    }

    fn blocked(waits: &Waits, stack: Option<u32>) -> u64 {
        waits.rows.get(&(TID, stack.map(place))).map_or(0, |row| row.ns.blocked / MS)
    }

    #[test]
    fn times_add_up_to_the_wall_time() {
        let events = [
            (110, BLOCKS),
            (150, Event::Arrives),
            (160, Event::Leaves { preempted: true }),
            (170, Event::Arrives),
            (175, BLOCKS),
        ];
        assert_eq!(times(&profile(true, 0, &events)), (25, 65, 10));
    }

    #[test]
    fn the_first_event_shows_the_state_before_it() {
        assert_eq!(times(&profile(false, 0, &[(130, BLOCKS)])), (30, 70, 0), "it was running");
        assert_eq!(times(&profile(true, 0, &[(130, Event::Arrives)])), (70, 0, 30), "it was runnable");
        assert_eq!(times(&profile(false, 0, &[(130, Event::Arrives)])), (70, 30, 0), "it was blocked");
        assert_eq!(times(&profile(true, 0, &[])), (100, 0, 0), "it ran without a switch");
        assert_eq!(times(&profile(false, 0, &[])), (0, 100, 0), "it waited without a switch");
    }

    #[test]
    fn events_before_the_beginning_only_show_the_state() {
        assert_eq!(times(&profile(true, 0, &[(50, BLOCKS), (120, Event::Arrives)])), (80, 20, 0));
        assert_eq!(times(&profile(false, 0, &[(50, Event::Arrives), (120, BLOCKS)])), (20, 80, 0));
    }

    #[test]
    fn a_stack_belongs_to_the_wait_that_follows() {
        let events = [
            (110, stack(1, 1)),
            (110, BLOCKS),
            (130, Event::Arrives),
            (140, stack(2, 1)),
            (140, BLOCKS),
            (150, waiting(1, 145)),
        ];
        let waits = profile(true, 0, &events);
        assert_eq!((blocked(&waits, Some(1)), blocked(&waits, Some(2)), blocked(&waits, None)), (20, 60, 0));
    }

    #[test]
    fn short_waits_are_weighted_by_the_sampling_period() {
        let mut events = Vec::new();
        for wait in 0..10 {
            if wait == 0 {
                events.push((100, stack(1, 2)));
            } else if wait == 5 {
                events.push((150, stack(2, 6)));
            }
            events.extend([(100 + 10 * wait, BLOCKS), (104 + 10 * wait, Event::Arrives)]);
        }
        let waits = profile(true, 0, &events);
        assert_eq!(times(&waits), (60, 40, 0));
        assert_eq!((blocked(&waits, Some(1)), blocked(&waits, Some(2))), (10, 30));
    }

    #[test]
    fn a_snapshot_supplies_the_stack_of_the_wait_in_progress_only() {
        let waits = profile(true, 0, &[(110, BLOCKS), (120, waiting(1, 115)), (130, Event::Arrives)]);
        assert_eq!((blocked(&waits, Some(1)), blocked(&waits, None)), (20, 0));
        let waits = profile(true, 0, &[(110, BLOCKS), (120, waiting(1, 105)), (130, Event::Arrives)]);
        assert_eq!(blocked(&waits, None), 20, "the copy began before the wait");
        let waits = profile(true, 0, &[(110, BLOCKS), (130, Event::Arrives), (140, waiting(1, 120))]);
        assert_eq!(blocked(&waits, None), 20, "the thread runs");
        assert_eq!(blocked(&profile(false, 0, &[(120, waiting(1, 119))]), Some(1)), 100, "no switch at all");
    }

    #[test]
    fn sampled_stacks_have_more_weight_than_those_of_snapshots() {
        let mut events = Vec::new();
        for wait in 0..4 {
            events.extend((wait == 0).then_some((100, stack(1, 20))));
            events.push((100 + 25 * wait, BLOCKS));
            events.extend((wait == 1).then_some((140, waiting(2, 130))));
            events.push((120 + 25 * wait, Event::Arrives));
        }
        let waits = profile(true, 0, &events);
        // The time of the waits without a sampled stack is distributed 20 to 1.
        assert_eq!((blocked(&waits, Some(1)), blocked(&waits, Some(2))), (77, 2));
    }

    #[test]
    fn waits_found_by_snapshots_are_weighted_by_the_inverse_of_their_duration() {
        // There are two waits of 4 ms and two of 8 ms. Waits of 4 ms are found half as often.
        let mut events = vec![];
        for (index, stack) in [(0, None), (1, Some(1)), (2, Some(2)), (3, Some(2))] {
            let (begin, duration) = (100 + 20 * index, if index < 2 { 4 } else { 8 });
            events.push((begin, BLOCKS));
            events.extend(stack.map(|stack| (begin + 2, waiting(stack, begin + 1))));
            events.push((begin + duration, Event::Arrives));
        }
        let waits = profile(true, 20, &events);
        let (first, second) = (blocked(&waits, Some(1)), blocked(&waits, Some(2)));
        assert!((23..=24).contains(&(first + second)), "rounded down to ms");
        // Weights: 5 * 4 ms for one stack, 2 * 3 * 8 ms for the other.
        assert_eq!(first, 7);
    }

    #[test]
    fn a_lost_event_does_not_change_the_sum() {
        for events in [
            vec![(110, BLOCKS), (130, BLOCKS), (140, Event::Arrives)],
            vec![(110, Event::Arrives), (130, Event::Arrives), (150, BLOCKS)],
            vec![(110, stack(1, 1)), (120, Event::Arrives), (130, BLOCKS), (125, Event::Arrives)],
        ] {
            let (running, blocked, runnable) = times(&profile(true, 0, &events));
            assert_eq!(running + blocked + runnable, 100, "{events:?}");
        }
    }

    #[test]
    fn threads_that_start_and_exit_are_counted_while_they_exist() {
        let waits = profile(
            true,
            0,
            &[(120, Event::Starts(PARENT)), (125, Event::Arrives), (150, Event::Exits), (151, BLOCKS)],
        );
        assert_eq!(times(&waits), (25, 0, 5));
        assert_eq!(waits.times[0].comm, "parent");
        let waits = profile(true, 0, &[(50, Event::Exits)]);
        assert!(waits.times.is_empty(), "it exited before the beginning");
    }
}
