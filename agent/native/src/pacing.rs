//! Cooperative yielding: a snapshot yields its CPU frequently, so that the threads of a busy server never
//! wait long for a CPU.

use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that a snapshot occupies a CPU before it yields. This is much shorter than the scheduler's own
/// time slice (3 to 4 ms), which clients would notice as a pause.
const MAX_SLICE: Duration = Duration::from_micros(100);
/// Time that the snapshot sleeps after each time slice, once the CPU has been found to be contended. `sched_yield`
/// would then forfeit a whole time slice of the scheduler, which would delay the snapshot too much.
const PAUSE: Duration = Duration::from_micros(150);
/// If a `sched_yield` takes longer than this, another thread has run in between, so the CPU is contended.
const SWITCH_TIME: Duration = Duration::from_micros(10);

/// Limits the time slices of a long computation, such as one step of a snapshot.
pub struct Pacer {
    slice_began: Instant,
    /// Once set, this is not reset: only another `sched_yield` could show whether the CPU is still contended, and it
    /// may forfeit a whole time slice of the scheduler. Therefore each computation needs its own `Pacer`.
    contended: bool,
}

impl Pacer {
    /// Start the first time slice, assuming that no other thread needs the CPU.
    pub fn start() -> Self {
        Self { slice_began: Instant::now(), contended: false }
    }

    /// Yield the CPU if the time slice is used up. Between system calls, no lock that the server may need
    /// is held.
    pub fn yield_if_due(&mut self) {
        if self.slice_began.elapsed() < MAX_SLICE {
            return;
        }
        if self.contended {
            thread::sleep(PAUSE);
        } else {
            let started = Instant::now();
            thread::yield_now();
            self.contended = started.elapsed() > SWITCH_TIME;
        }
        self.slice_began = Instant::now();
    }
}
