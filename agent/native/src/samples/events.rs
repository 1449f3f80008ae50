//! Samples the running threads of a process with perf events only, for hosts that do not permit BPF.
//!
//! If the kernel permits it, one clock event per CPU samples all threads that run there, as the BPF program
//! does (`programs::OnCpu`), and samples of other processes are dropped when they are read. Otherwise each
//! thread has one clock event per CPU (`event_set`).
//!
//! The kernel removes all events when this process exits.

use std::fs;

use perf_event_open_sys as sys;
use sys::bindings::perf_event_attr;

use super::event_set::{EventSet, Owners};
use super::programs::online_cpus;
use super::record::Capture;
use crate::error::{Kind, Result};
use crate::perf_event::{self, long};
use crate::snapshot::Registers;

/// Minimum size of a ring buffer, a power-of-two number of pages; enough for two samples.
pub(super) const MIN_RING_BYTES: usize = 128 << 10;
/// Maximum number of kernel addresses in a sample.
const MAX_KERNEL_FRAMES: usize = 64;

/// The sampling options.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// CPU time between two samples.
    pub period_ns: u64,
    /// Include kernel frames in each stack.
    pub kernel: bool,
    /// Maximum size of the ring buffer of each CPU, a power-of-two number of pages.
    pub ring_bytes: usize,
}

/// A sampling mode. The privileges of this process determine which modes are available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// True if the clock events are per CPU, not per thread. This needs CAP_PERFMON or
    /// perf_event_paranoid <= 0.
    pub per_cpu: bool,
    /// True if kernel time is sampled. This needs CAP_PERFMON or perf_event_paranoid <= 1.
    pub in_kernel: bool,
}

/// All modes, best first.
const MODES: [Mode; 3] = [
    Mode { per_cpu: true, in_kernel: true },
    Mode { per_cpu: false, in_kernel: true },
    Mode { per_cpu: false, in_kernel: false },
];

/// Samples the running threads of a process.
pub struct PerfOnCpu {
    mode: Mode,
    clocks: EventSet,
    filter: Filter,
}

impl PerfOnCpu {
    /// Open the clock events of process `pid` in the best mode that is permitted; sampling starts with
    /// `begin`.
    ///
    /// Errors: `Rights`, `Gone`, `Perf`.
    pub fn new(pid: u32, options: Options) -> Result<Self> {
        let cpus = online_cpus()?;
        let mut opened = Self::open(pid, options, MODES[0], &cpus);
        for mode in &MODES[1..] {
            if !opened.as_ref().is_err_and(|error| error.kind == Kind::Rights) {
                break;
            }
            opened = Self::open(pid, options, *mode, &cpus);
        }
        opened
    }

    fn open(pid: u32, options: Options, mode: Mode, cpus: &[i32]) -> Result<Self> {
        let kernel = options.kernel && mode.in_kernel;
        let attributes = attributes(options.period_ns, mode, kernel);
        let ring_bytes = MIN_RING_BYTES..=options.ring_bytes;
        let clocks = if mode.per_cpu {
            EventSet::of_cpus(attributes, cpus, &ring_bytes)?
        } else {
            EventSet::of_threads(attributes, pid, cpus, &ring_bytes)?
        };
        Ok(Self { mode, clocks, filter: Filter { pid, kernel } })
    }

    /// Return the mode in which the clock events were opened.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Start sampling.
    pub fn begin(&mut self) -> Result<()> {
        self.clocks.begin()
    }

    /// Stop sampling. Samples that are already in the rings stay there.
    pub fn end(&mut self) {
        self.clocks.end();
    }

    /// Return the number of records lost because a ring was full.
    pub fn lost(&self) -> u64 {
        self.clocks.lost()
    }

    /// Pass the available samples of the process to `take`, and return their number. At most `max` records
    /// are read from each ring.
    pub fn read(&mut self, max: usize, take: &mut dyn FnMut(Capture<'_>)) -> usize {
        let mut count = 0;
        self.clocks.read(max, &mut |owners, kind, _, body| {
            if kind == perf_event::SAMPLE
                && let Some(capture) = self.filter.capture(owners, body)
            {
                count += 1;
                take(capture);
            }
        });
        count
    }
}

/// Parses samples, and drops duplicates and samples of other processes.
struct Filter {
    pid: u32,
    /// True if the samples contain kernel frames.
    kernel: bool,
}

impl Filter {
    /// Parse a sample: pid and tid, the event's id, and the stack.
    fn capture<'ring>(&self, owners: &Owners, body: &'ring [u8]) -> Option<Capture<'ring>> {
        let ids = long(body, 0)?;
        let (pid, tid) = (ids as u32, (ids >> 32) as u32);
        if pid != self.pid || owners.is_duplicate(tid, long(body, 8)?) {
            return None;
        }
        let (registers, stack, kernel) = parse_stack(body.get(16..)?, self.kernel)?;
        Some(Capture { comm: thread_name(pid, tid), ..stack_capture(tid, registers, stack, kernel) })
    }
}

/// Return a sample without a name, a system call or replaced return addresses, which perf events do not report.
pub(super) fn stack_capture(tid: u32, registers: Registers, stack: &[u8], kernel: Vec<u64>) -> Capture<'_> {
    Capture {
        tid,
        kind: 0,
        weight: 1,
        registers,
        syscall: -1,
        arg0: 0,
        comm: String::new(),
        stack,
        kernel,
        returns: Vec::new(),
    }
}

/// Parse the end of a sample: the kernel's addresses if requested, the user registers and the stack.
pub(super) fn parse_stack(mut body: &[u8], has_kernel: bool) -> Option<(Registers, &[u8], Vec<u64>)> {
    let mut kernel = Vec::new();
    if has_kernel {
        let addresses = body.get(8..)?.get(..usize::try_from(long(body, 0)?).ok()?.checked_mul(8)?)?;
        body = &body[8 + addresses.len()..];
        let addresses = addresses.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        // The largest values are markers that separate the parts of a stack.
        let is_marker = |address: &u64| *address >= sys::bindings::PERF_CONTEXT_MAX;
        kernel = addresses.filter(|address| !is_marker(address)).take(MAX_KERNEL_FRAMES).collect();
    }
    let (registers, stack) = perf_event::user_stack(body)?;
    Some((registers, stack, kernel))
}

fn attributes(period_ns: u64, mode: Mode, kernel: bool) -> perf_event_attr {
    let mut attributes = perf_event::stack_clock(period_ns);
    attributes.sample_type |= u64::from(sys::bindings::PERF_SAMPLE_TID | sys::bindings::PERF_SAMPLE_ID);
    attributes.read_format = sys::bindings::PERF_FORMAT_ID.into();
    if kernel {
        with_kernel_stack(&mut attributes);
    }
    attributes.set_inherit(u64::from(!mode.per_cpu));
    attributes.set_exclude_idle(1);
    attributes.set_exclude_kernel(u64::from(!mode.in_kernel));
    attributes.set_exclude_hv(u64::from(!mode.in_kernel));
    attributes
}

/// Add the kernel stack to the samples of an event.
pub(super) fn with_kernel_stack(attributes: &mut perf_event_attr) {
    attributes.sample_type |= u64::from(sys::bindings::PERF_SAMPLE_CALLCHAIN);
    attributes.set_exclude_callchain_user(1);
}

/// Return the name of a thread; empty if it has exited.
pub(super) fn thread_name(pid: u32, tid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name)).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rustc_hash::{FxHashMap, FxHashSet};

    use super::*;

    const REGISTERS: [u64; 4] = [2, 0x30, 0x20, 0x10];

    fn capture(kernel: bool, body: &[u8]) -> Option<Capture<'_>> {
        let by_event = FxHashMap::from_iter([(100, 7), (101, 8)]);
        Filter { pid: 7, kernel }.capture(&Owners { by_event, tids: FxHashSet::from_iter([7, 8]) }, body)
    }

    fn sample(pid: u64, tid: u64, event: u64, rest: &[u64]) -> Vec<u8> {
        let words = [&[tid << 32 | pid, event], rest, &REGISTERS, &[8, 0xaa, 8]].concat();
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn parses_a_sample() {
        let body = sample(7, 8, 101, &[]);
        let captured = capture(false, &body).expect("a sample of the process");
        assert_eq!((captured.tid, captured.registers.ip, captured.stack.len()), (8, 0x10, 8));
        assert_eq!((captured.kernel.len(), captured.syscall, captured.weight), (0, -1, 1));
    }

    #[test]
    fn drops_other_processes_and_duplicates() {
        let taken = |pid, tid, event| capture(false, &sample(pid, tid, event, &[])).is_some();
        assert!(!taken(6, 8, 101), "another process");
        assert!(taken(7, 9, 100), "a new thread, with its parent's event");
        assert!(!taken(7, 8, 100), "an inherited event in a thread that has its own");
        assert!(taken(7, 8, 555), "a per-CPU event");
    }

    #[test]
    fn parses_the_kernel_part_of_a_stack() {
        let marker = -128_i64 as u64; // PERF_CONTEXT_KERNEL
        let body = sample(7, 8, 101, &[3, marker, 0xffff_ffff_8100_0000, 0xffff_ffff_8100_1000]);
        let captured = capture(true, &body).expect("a sample");
        assert_eq!(captured.kernel, [0xffff_ffff_8100_0000, 0xffff_ffff_8100_1000]);
        assert_eq!(captured.registers.sp, 0x20);
    }

    #[test]
    fn truncated_and_malformed_samples_do_not_panic() {
        let body = sample(7, 8, 101, &[1, 5]);
        for length in 0..body.len() {
            assert!(capture(true, &body[..length]).is_none());
        }
        for count in [100, 1 << 61, u64::MAX] {
            assert!(capture(true, &sample(7, 8, 101, &[count, 5])).is_none());
        }
    }

    /// The range of sample counts for a thread that uses a CPU for 200 ms, if each ms is sampled once. Samples
    /// may be missing while the thread runs in the kernel or the hypervisor does not run this machine.
    const ONCE: std::ops::RangeInclusive<usize> = 120..=220;

    /// Keep a CPU busy until this thread has used the given CPU time.
    fn burn(time: Duration) {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        while Duration::new(now.tv_sec as u64, now.tv_nsec as u32) < time {
            // SAFETY: the pointer is to a local timespec. The call cannot fail with this clock.
            unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
            for _ in 0..10_000 {
                std::hint::spin_loop();
            }
        }
    }

    /// Return the clock events of this process in the given mode; None if the kernel does not permit it here.
    fn opened(mode: Mode) -> Option<PerfOnCpu> {
        // 400 samples of 60 KB fit into a ring, in case the reading thread does not run for a while.
        let options = Options { period_ns: 1_000_000, kernel: false, ring_bytes: 32 << 20 };
        let cpus = online_cpus().expect("a list of CPUs");
        PerfOnCpu::open(std::process::id(), options, mode, &cpus).ok()
    }

    /// Read until `computing` ends, and return the number of samples of the thread.
    fn count(mut events: PerfOnCpu, computing: thread::JoinHandle<u32>) -> usize {
        let mut tids = Vec::new();
        while !computing.is_finished() {
            thread::sleep(Duration::from_millis(1));
            events.read(usize::MAX, &mut |capture| tids.push(capture.tid));
        }
        events.end();
        events.read(usize::MAX, &mut |capture| tids.push(capture.tid));
        let tid = computing.join().expect("the thread's id");
        tids.iter().filter(|sampled| **sampled == tid).count()
    }

    /// Start a thread that uses a CPU for 200 ms once it receives a message, and return its id at the end.
    fn computing() -> (mpsc::Sender<()>, u32, thread::JoinHandle<u32>) {
        let (send, receive) = mpsc::channel();
        let (send_tid, receive_tid) = mpsc::channel();
        let computing = thread::spawn(move || {
            // SAFETY: gettid has no arguments and cannot fail.
            let tid = unsafe { libc::gettid() } as u32;
            send_tid.send(tid).expect("a receiver");
            receive.recv().expect("a message");
            burn(Duration::from_millis(200));
            tid
        });
        (send, receive_tid.recv().expect("the thread's id"), computing)
    }

    #[test]
    fn samples_existing_and_new_threads_in_each_mode() {
        for mode in MODES {
            for is_new in [false, true] {
                let existing = (!is_new).then(computing);
                let Some(mut events) = opened(mode) else { continue };
                events.begin().expect("permitted, because opening was");
                let (go, _, computing) = existing.unwrap_or_else(computing);
                go.send(()).expect("a receiver");
                let samples = count(events, computing);
                assert!(ONCE.contains(&samples), "{mode:?}, new: {is_new}: {samples} samples");
            }
        }
    }

    #[test]
    fn a_thread_with_inherited_and_own_clocks_is_sampled_once() {
        let mode = MODES[2];
        let Some(mut events) = opened(mode) else { return };
        let (go, tid, computing) = computing();
        assert!(events.clocks.owners.tids.insert(tid), "the thread is new");
        let cpus = online_cpus().expect("a list of CPUs");
        let own = attributes(1_000_000, mode, false);
        events.clocks.add(own, tid.cast_signed(), &cpus, &(0..=0)).expect("permitted, because opening was");
        events.begin().expect("permitted, because opening was");
        go.send(()).expect("a receiver");
        let samples = count(events, computing);
        assert!(ONCE.contains(&samples), "{samples} samples");
    }
}
