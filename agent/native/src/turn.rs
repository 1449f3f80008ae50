//! Cooperative yielding: a snapshot gives up its CPU often, so that a busy server's threads never wait long
//! for it.

use std::thread;
use std::time::{Duration, Instant};

/// How long a snapshot may occupy a CPU before it yields. Far below the scheduler's own time slice (3 to 4
/// ms), which a client would notice as a gap.
const LONGEST: Duration = Duration::from_micros(100);
/// How long other threads get the CPU after each time slice. It is a sleep and not a `sched_yield`, because a
/// yielding thread forfeits a whole scheduler slice, which would make the snapshot itself wait for long.
const PAUSE: Duration = Duration::from_micros(150);
/// If a `sched_yield` takes longer than this, another thread has run meanwhile.
const SWITCHED: Duration = Duration::from_micros(10);

/// Limits the time slices of a long computation.
pub struct Turn {
    began: Instant,
    wanted: bool,
}

impl Turn {
    /// Start the first time slice, assuming that no other thread wants the CPU.
    pub fn begin() -> Self {
        Self { began: Instant::now(), wanted: false }
    }

    /// Yield the CPU if the time slice is used up. Call it only where no lock of the server is held.
    pub fn give_way(&mut self) {
        if self.began.elapsed() < LONGEST {
            return;
        }
        if self.wanted {
            thread::sleep(PAUSE);
        } else {
            let asked = Instant::now();
            thread::yield_now();
            self.wanted = asked.elapsed() > SWITCHED;
        }
        self.began = Instant::now();
    }
}
