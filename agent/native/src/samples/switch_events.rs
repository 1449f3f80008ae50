//! Reads a process's context switches with perf events only, for hosts that do not permit BPF.
//!
//! PERF_RECORD_SWITCH (Linux 4.3) reports every switch with its time, and does not require permission to profile
//! the kernel. A software event that counts context switches can sample stacks, but requires that permission,
//! because a switch takes place in the kernel (perf_exclude_event in kernel/events/core.c). The sample is
//! written before the record of the same switch (perf_event_task_sched_out in include/linux/perf_event.h).
//!
//! If the kernel permits it, the events are per CPU, and the records of other processes are dropped when they
//! are read. Otherwise the events are per thread, and all stacks come from snapshots.

use perf_event_open_sys::bindings::{self, perf_event_attr};

use super::event_set::EventSet;
use super::events::{MIN_RING_BYTES, with_kernel_stack};
use super::programs::{now, online_cpus};
use super::record::Capture;
use super::sampling_period::{FIRST_PERIOD, Period};
use super::switch_records::{capture, leaves, new_name, parse};
use super::switches::{Event, Switches, Timed};
use super::waits::Waits;
use super::{MAX_RECORDS, Place};
use crate::error::{Kind, Result};
use crate::perf_event;
use crate::snapshot::procfs::ProcfsSource;
use crate::snapshot::task::{read_thread, thread_ids};
use crate::snapshot::{Consistency, RawThread, Source};

/// Minimum size of the ring buffer for switches if the events are per CPU; enough for 6,500 records. Together
/// with the smallest ring buffer for stacks, it is within a user's default limit of 516 KiB per CPU.
const SWITCH_RING_BYTES: usize = 256 << 10;
/// Minimum size of the ring buffer for switches if the events are per thread.
const MIN_SWITCH_RING_BYTES: usize = 64 << 10;

/// The recording options.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Include kernel frames in each stack.
    pub kernel: bool,
    /// Approximate maximum number of samples per second over all threads of all processes.
    pub max_stacks: u64,
    /// Maximum size of each CPU's ring buffer for stacks, a power-of-two number of pages. The ring buffer
    /// for switches is half as large, but has at least `SWITCH_RING_BYTES` if the events are per CPU, and
    /// `MIN_SWITCH_RING_BYTES` if they are per thread.
    pub ring_bytes: usize,
}

/// Measures the waits of a process's threads with perf events.
pub struct PerfOffCpu {
    pid: u32,
    switches: EventSet,
    /// The events that sample stacks; None if the kernel does not permit them.
    stacks: Option<EventSet>,
    kernel: bool,
    period: Period,
    queue: Vec<Timed>,
    threads: Switches,
    source: Result<ProcfsSource>,
    snapshot_at: u64,
    /// The time at which the last read began.
    read_at: u64,
    /// The time at which the second-to-last read began. All records of earlier events have been read.
    complete_until: u64,
    ended: u64,
}

impl PerfOffCpu {
    /// Open the events of process `pid`; counting starts with `begin`.
    ///
    /// Errors: `Rights`, `Gone`, `Perf`.
    pub fn new(pid: u32, options: Options) -> Result<Self> {
        let cpus = online_cpus()?;
        match Self::of_cpus(pid, options, &cpus) {
            Err(error) if error.kind == Kind::Rights => Self::of_threads(pid, options, &cpus),
            opened => opened,
        }
    }

    /// Open events per CPU. If the limit on locked memory is too low for both rings, use smaller ones.
    fn of_cpus(pid: u32, options: Options, cpus: &[i32]) -> Result<Self> {
        let mut bytes = options.ring_bytes;
        loop {
            let for_switches = (bytes / 2).max(SWITCH_RING_BYTES);
            let opened = EventSet::of_cpus(switch_attributes(false), cpus, &(for_switches..=for_switches))
                .and_then(|switches| {
                    let stacks = EventSet::of_cpus(stack_attributes(options.kernel), cpus, &(bytes..=bytes));
                    Ok((switches, stacks?))
                });
            match opened {
                Err(error) if error.kind == Kind::Perf && bytes > MIN_RING_BYTES => bytes /= 2,
                Err(error) => return Err(error),
                Ok((switches, stacks)) => return Ok(Self::with(pid, options, switches, Some(stacks))),
            }
        }
    }

    /// Open events per thread, which cannot sample stacks.
    fn of_threads(pid: u32, options: Options, cpus: &[i32]) -> Result<Self> {
        let bytes = MIN_SWITCH_RING_BYTES..=options.ring_bytes / 2;
        let switches = EventSet::of_threads(switch_attributes(true), pid, cpus, &bytes)?;
        Ok(Self::with(pid, options, switches, None))
    }

    fn with(pid: u32, options: Options, switches: EventSet, stacks: Option<EventSet>) -> Self {
        Self {
            pid,
            switches,
            stacks,
            kernel: options.kernel,
            period: Period::new(options.max_stacks),
            queue: Vec::new(),
            threads: Switches::default(),
            source: ProcfsSource::new(pid),
            snapshot_at: 0,
            read_at: 0,
            complete_until: 0,
            ended: u64::MAX,
        }
    }

    /// Return true if the events are per CPU and sample stacks.
    pub fn per_cpu(&self) -> bool {
        self.stacks.is_some()
    }

    /// Return why the stacks of waiting threads cannot be copied; None if they can.
    pub fn snapshot_problem(&self) -> Option<String> {
        self.source.as_ref().err().map(|error| error.detail.clone())
    }

    /// Start counting, and return the start time in ns of CLOCK_MONOTONIC.
    pub fn begin(&mut self) -> Result<u64> {
        self.switches.begin()?;
        for tid in thread_ids(self.pid)? {
            if let Some(thread) = read_thread(self.pid, tid) {
                self.threads.register(tid, thread.comm, thread.state == 'R');
            }
        }
        let began = now();
        self.threads.begin(began);
        (self.read_at, self.period.adjusted_at) = (began, began);
        if let Some(stacks) = &mut self.stacks {
            stacks.begin()?;
        }
        Ok(began)
    }

    /// Read the records that have arrived, and return the number of stacks among them. `place_of` assigns a
    /// place to each stack.
    pub(super) fn read(&mut self, place_of: &mut dyn FnMut(&Capture<'_>) -> Place) -> Result<u64> {
        let began = now();
        self.complete_until = std::mem::replace(&mut self.read_at, began);
        let Self { pid, switches, stacks, kernel, period, queue, threads, .. } = self;
        let mut count = 0;
        if let Some(stacks) = stacks {
            stacks.read(MAX_RECORDS, &mut |_, kind, _, body| {
                if kind == perf_event::SAMPLE
                    && let Some((at, capture)) = capture(*pid, *kernel, body)
                {
                    count += 1;
                    let event = Event::Stack { place: place_of(&capture), every: period.at(at) };
                    queue.push(Timed { at, tid: capture.tid, event });
                }
            });
        }
        switches.read(MAX_RECORDS, &mut |owners, kind, flags, body| {
            period.switches += u64::from(leaves(kind, flags, body));
            if kind == bindings::PERF_RECORD_COMM {
                if let Some((tid, name)) = new_name(*pid, body) {
                    threads.set_name(tid, name);
                }
            } else if let Some(event) = parse(*pid, owners, kind, flags, body) {
                queue.push(event);
            }
        });
        if let (Some(stacks), Some(period)) = (stacks, self.period.adjust(began)) {
            stacks.set_period(period)?;
        }
        Ok(count)
    }

    /// Add to `waits` the waits that ended before the second-to-last read began. Later events are applied after the
    /// next read, because the records of a thread that moved to another CPU are in different rings.
    pub(super) fn apply(&mut self, waits: &mut Waits) {
        self.apply_until(self.complete_until, waits);
    }

    fn apply_until(&mut self, until: u64, waits: &mut Waits) {
        self.queue.sort_by_key(|event| event.at);
        let ready = self.queue.partition_point(|event| event.at <= until);
        for event in self.queue.drain(..ready) {
            if event.at <= self.ended {
                self.threads.apply(event, waits);
            }
        }
    }

    /// Copy the stacks of waiting threads whose wait has no stack yet. `place_of` assigns a place to each.
    pub(super) fn take_snapshot(&mut self, place_of: &mut dyn FnMut(&RawThread) -> Place) -> Result<()> {
        let Ok(source) = &mut self.source else { return Ok(()) };
        let began = now();
        for tid in self.threads.without_stack() {
            let since = now();
            let Some(thread) = source.copy_one(tid)? else { continue };
            if thread.consistency == Consistency::Consistent {
                let at = now();
                self.queue.push(Timed { at, tid, event: Event::Waiting { place: place_of(&thread), since } });
            }
        }
        if self.stacks.is_none() && self.snapshot_at > 0 {
            self.threads.snapshot_interval = began - self.snapshot_at;
        }
        self.snapshot_at = began;
        Ok(())
    }

    /// Stop counting, and return the end time in ns of CLOCK_MONOTONIC.
    pub fn end(&mut self) -> u64 {
        self.ended = now();
        self.switches.end();
        if let Some(stacks) = &mut self.stacks {
            stacks.end();
        }
        self.ended
    }

    /// Complete the accounting of all threads. The caller has read all records.
    pub(super) fn settle(&mut self, waits: &mut Waits) {
        self.apply_until(u64::MAX, waits);
        self.threads.settle(self.ended, waits);
    }

    /// Return the number of records lost because a ring was full, and how many of them were not stacks.
    pub fn lost(&self) -> (u64, u64) {
        let switches = self.switches.lost();
        (switches + self.stacks.as_ref().map_or(0, EventSet::lost), switches)
    }
}

/// Return the attributes of an event that records switches, the start and exit of threads, and their names.
fn switch_attributes(per_thread: bool) -> perf_event_attr {
    let mut attributes = attributes(bindings::PERF_COUNT_SW_DUMMY);
    attributes.set_context_switch(1);
    attributes.set_task(1);
    attributes.set_comm(1);
    attributes.set_sample_id_all(1);
    attributes.set_inherit(u64::from(per_thread));
    attributes.set_exclude_kernel(1);
    attributes.set_exclude_hv(1);
    attributes
}

/// Return the attributes of an event that samples the stacks of threads that are leaving a CPU.
///
/// With PERF_SAMPLE_PERIOD, the kernel would ignore the period (perf_swevent_event in kernel/events/core.c).
fn stack_attributes(kernel: bool) -> perf_event_attr {
    let stack = perf_event::stack_clock(FIRST_PERIOD);
    let mut attributes = attributes(bindings::PERF_COUNT_SW_CONTEXT_SWITCHES);
    attributes.__bindgen_anon_1.sample_period = FIRST_PERIOD;
    attributes.sample_type |= stack.sample_type;
    attributes.sample_regs_user = stack.sample_regs_user;
    attributes.sample_stack_user = stack.sample_stack_user;
    if kernel {
        with_kernel_stack(&mut attributes);
    }
    attributes
}

fn attributes(event: bindings::perf_sw_ids) -> perf_event_attr {
    let identification = bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME | bindings::PERF_SAMPLE_ID;
    let mut attributes = perf_event_attr {
        config: event.into(),
        sample_type: identification.into(),
        read_format: bindings::PERF_FORMAT_ID.into(),
        clockid: libc::CLOCK_MONOTONIC,
        ..perf_event::clock(0)
    };
    attributes.set_disabled(1);
    attributes.set_use_clockid(1);
    attributes
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::snapshot::Trust;

    const PLACE: Place = Place { stack: 0, trust: Trust::Exact, syscall: -1, file: -1 };

    /// Start a thread that sleeps for 100 ms once it receives a message, then computes for 100 ms, and returns
    /// its id.
    fn working() -> (mpsc::Sender<()>, thread::JoinHandle<u32>) {
        let (send, receive) = mpsc::channel();
        let working = thread::spawn(move || {
            receive.recv().expect("a message");
            thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(100) {
                std::hint::spin_loop();
            }
            nix::unistd::gettid().as_raw() as u32
        });
        (send, working)
    }

    #[test]
    fn measures_existing_and_new_threads() {
        const OPTIONS: Options = Options { kernel: false, max_stacks: 100, ring_bytes: 4 << 20 };
        let cpus = online_cpus().expect("a list of CPUs");
        let pid = std::process::id();
        for open in [PerfOffCpu::of_cpus, PerfOffCpu::of_threads] {
            for is_new in [false, true] {
                let existing = (!is_new).then(working);
                let Ok(mut events) = open(pid, OPTIONS, &cpus) else { continue };
                let mut waits = Waits::default();
                let began = events.begin().expect("permitted, because opening was");
                let (go, working) = existing.unwrap_or_else(working);
                go.send(()).expect("a receiver");
                while !working.is_finished() {
                    thread::sleep(Duration::from_millis(5));
                    events.read(&mut |_| PLACE).expect("a period that the kernel permits");
                    events.apply(&mut waits);
                }
                let tid = working.join().expect("the thread's id");
                let ended = events.end();
                events.read(&mut |_| PLACE).expect("no change of the period");
                events.settle(&mut waits);
                let times = waits.times.iter().find(|times| times.tid == tid).expect("the thread's times");
                let wall = times.running + times.waited.blocked + times.waited.runnable;
                assert!((150_000_000..=ended - began).contains(&wall), "new: {is_new}: {times:?}");
                assert!(times.waited.blocked >= 70_000_000, "new: {is_new}: {times:?}");
                assert!(times.running + times.waited.runnable >= 70_000_000, "new: {is_new}: {times:?}");
                assert_eq!(events.lost().1, 0);
            }
        }
    }
}
