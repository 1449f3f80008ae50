//! Cooperative yielding: a snapshot gives up its CPU often, so that a busy server's threads never wait long
//! for it.

use std::thread;
use std::time::{Duration, Instant};

/// How long a snapshot may occupy a CPU before it yields. Far below the scheduler's own time slice (3 to 4
/// ms), which a client would notice as a gap.
const MAX_SLICE: Duration = Duration::from_micros(100);
/// How long other threads get the CPU after each time slice. It is a sleep and not a `sched_yield`, because a
/// yielding thread forfeits a whole scheduler slice, which would make the snapshot itself wait for long.
const PAUSE: Duration = Duration::from_micros(150);
/// If a `sched_yield` takes longer than this, another thread has run meanwhile.
const SWITCH_TIME: Duration = Duration::from_micros(10);

/// Limits the time slices of a long computation.
pub struct Pacer {
    slice_began: Instant,
    contended: bool,
}

impl Pacer {
    /// Start the first time slice, assuming that no other thread wants the CPU.
    pub fn start() -> Self {
        Self { slice_began: Instant::now(), contended: false }
    }

    /// Yield the CPU if the time slice is used up. Call it only where no lock of the server is held.
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
