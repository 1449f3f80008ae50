//! Samples registers and stacks of running threads, with one perf event sample per thread.
//!
//! For a running thread, the registers saved by the kernel are stale: they date from its last kernel entry.
//! Therefore a software clock event is opened on the thread. The event overflows once while the thread runs,
//! and records its user registers and user stack.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

use perf_event_open_sys as sys;

use super::Registers;
use crate::perf_event::{self, Ring};

/// CPU time, in ns, after which a running thread is sampled.
const PERIOD_NS: u64 = 20_000;
/// Size of a ring buffer, a power-of-two number of pages; enough for one sample and the accompanying records.
const RING_BYTES: usize = 128 << 10;
/// Number of rings per CPU that are open at the same time; each takes 132 KB, including its header page. At most
/// one thread per CPU runs at any time. Two rings per CPU are within the default limit on a user's locked memory
/// (perf_event_mlock_kb, 516 KB per CPU).
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

/// Sample the first `max_rings()` of `tids`, waiting at most `timeout`. Threads that do not run within that
/// time are missing from the result.
///
/// Errors: those of perf_event_open (EACCES without CAP_PERFMON, EMFILE, …) if it refuses the first thread;
/// threads that have exited are skipped.
pub fn sample(tids: &[u32], timeout: Duration) -> io::Result<Vec<Sample>> {
    let mut armed = Vec::new();
    for tid in tids.iter().take(max_rings()) {
        match Armed::new(*tid) {
            Ok(event) => armed.push(event),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if armed.is_empty() => return Err(error),
            Err(_) => break, // no more descriptors or locked memory
        }
    }
    let deadline = Instant::now() + timeout;
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
        let mut attributes = perf_event::stack_clock(PERIOD_NS);
        attributes.__bindgen_anon_2.wakeup_events = 1;
        let fd = perf_event::open(attributes, tid.cast_signed(), -1)?;
        let ring = Ring::map(&fd, RING_BYTES)?;
        // Allow one overflow, after which the kernel disables the event.
        // SAFETY: the descriptor is open, and this ioctl takes a number.
        if unsafe { sys::ioctls::REFRESH(fd.as_raw_fd(), 1) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { tid, fd, ring })
    }

    /// Return the sample if it has arrived.
    fn take(&mut self) -> Option<Sample> {
        let mut sample = None;
        self.ring.read(usize::MAX, &mut |kind, body| {
            if kind == perf_event::SAMPLE
                && let Some((registers, stack)) = perf_event::user_stack(body)
            {
                sample = Some(Sample { tid: self.tid, registers, stack: stack.to_vec() });
            }
        });
        sample
    }
}
