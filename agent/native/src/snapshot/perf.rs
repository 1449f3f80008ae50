//! Samples registers and stacks of running threads, with one perf event sample per thread.
//!
//! For a running thread, the registers saved by the kernel are stale: they date from its last kernel entry.
//! Therefore a software clock event is opened on the thread. When the event overflows while the thread runs, it
//! records its user registers and user stack. It is closed as soon as the first sample has been read.
//!
//! `PERF_EVENT_IOC_REFRESH`, which would disable the event in its first overflow, is not used: on Linux 6.16 and 6.17,
//! that freezes the whole host. The overflow handler waits for the timer that is calling it ("perf/core: Fix system
//! hang caused by cpu-clock usage", kernel/events/core.c; async-profiler issue 1578).

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use perf_event_open_sys as sys;

use super::Registers;
use crate::perf_event::{self, Ring};

/// CPU time, in ns, after which a running thread is sampled, unless the kernel would throttle this rate.
const PERIOD_NS: u64 = 20_000;
/// Maximum number of samples per second, above which the kernel throttles an event.
const MAX_SAMPLE_RATE: &str = "/proc/sys/kernel/perf_event_max_sample_rate";
/// Size of a ring buffer, a power-of-two number of pages; enough for one sample and the accompanying records.
const RING_BYTES: usize = 128 << 10;
/// Number of rings per CPU that are open at the same time; each takes 132 KiB, including its header page. At most
/// one thread per CPU runs at any time. Two rings per CPU are within the default limit on a user's locked memory
/// (perf_event_mlock_kb, 516 KiB per CPU).
const RINGS_PER_CPU: usize = 2;
const MAX_RINGS: usize = 64;

/// A sample of a running thread.
#[derive(Debug)]
pub struct Sample {
    /// The thread id.
    pub tid: u32,
    /// The user registers at the time of the sample or, inside a system call, at its entry.
    pub registers: Registers,
    /// The stack bytes from the stack pointer upward.
    pub stack: Vec<u8>,
}

/// Sample the first `max_rings()` of `tids`, or fewer if descriptors or locked memory run out. Wait for as long as
/// opening the events took, within the limits in `timeout`: threads that do not run within that time are missing
/// from the result, and so are threads that have exited.
///
/// Errors: from perf_event_open (EACCES without CAP_PERFMON, EMFILE, …) and mmap for the first thread that
/// has not exited.
pub fn sample(tids: &[u32], timeout: &RangeInclusive<Duration>) -> io::Result<Vec<Sample>> {
    let began = Instant::now();
    let mut armed = Vec::new();
    for tid in tids.iter().take(max_rings()) {
        match Armed::new(*tid) {
            Ok(event) => armed.push(event),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if armed.is_empty() => return Err(error),
            Err(_) => break, // no more descriptors or locked memory
        }
    }
    let deadline = Instant::now() + began.elapsed().clamp(*timeout.start(), *timeout.end());
    let mut samples = Vec::new();
    while !armed.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !wait(&armed, left)? {
            break;
        }
        armed.retain_mut(|event| match event.take() {
            Some(sample) => {
                samples.push(sample);
                false
            }
            None => true,
        });
    }
    Ok(samples)
}

/// Return the maximum number of threads that are sampled at once.
pub fn max_rings() -> usize {
    // SAFETY: sysconf takes and returns a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    (RINGS_PER_CPU * usize::try_from(cpus).unwrap_or(1)).clamp(RINGS_PER_CPU, MAX_RINGS)
}

/// Return the period of the clock events. In Linux 6.18.0 to 6.18.5, an event that is throttled and then closed can leave
/// its timer running (CVE-2026-23014). Therefore the rate is at most half of the maximum.
fn period_ns() -> u64 {
    static PERIOD: OnceLock<u64> = OnceLock::new();
    *PERIOD.get_or_init(|| {
        let max_rate = fs::read_to_string(MAX_SAMPLE_RATE).ok().and_then(|text| text.trim().parse().ok());
        PERIOD_NS.max(2_000_000_000 / max_rate.unwrap_or(u64::MAX).max(1))
    })
}

/// Wait until one of the events has a sample; return false on timeout.
fn wait(armed: &[Armed], left: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> = armed
        .iter()
        .map(|event| libc::pollfd { fd: event.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let left = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
    // SAFETY: the array is passed with its length. The array and the timespec outlive the call. The signal
    // mask may be null.
    let ready = unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &raw const left, ptr::null())
    };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(error) };
    }
    Ok(ready > 0)
}

struct Armed {
    tid: u32,
    fd: OwnedFd,
    ring: Ring,
}

impl Armed {
    fn new(tid: u32) -> io::Result<Self> {
        let mut attributes = perf_event::stack_clock(period_ns());
        attributes.__bindgen_anon_2.wakeup_events = 1;
        let fd = perf_event::open(attributes, tid.cast_signed(), -1)?;
        let ring = Ring::map(&fd, RING_BYTES)?;
        // SAFETY: the descriptor is open, and this ioctl takes a number.
        if unsafe { sys::ioctls::ENABLE(fd.as_raw_fd(), 0) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { tid, fd, ring })
    }

    /// Return the first sample if it has arrived. More can follow until the event is closed.
    fn take(&mut self) -> Option<Sample> {
        let mut sample = None;
        self.ring.read(usize::MAX, &mut |kind, body| {
            if sample.is_none()
                && kind == perf_event::SAMPLE
                && let Some((registers, stack)) = perf_event::user_stack(body)
            {
                sample = Some(Sample { tid: self.tid, registers, stack: stack.to_vec() });
            }
        });
        sample
    }
}
