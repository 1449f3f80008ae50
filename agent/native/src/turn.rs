//! Short turns on a CPU, so that a busy server's threads never wait long behind a look.

use std::thread;
use std::time::{Duration, Instant};

/// The longest that a look keeps a CPU from a thread that wants it: far below the scheduler's own slice (3 to
/// 4 ms), which a client would see as a gap.
const LONGEST: Duration = Duration::from_micros(100);
/// What the others get between two turns. Sleeping, not yielding: a yield forfeits a whole slice, which
/// makes the look itself wait for long.
const PAUSE: Duration = Duration::from_micros(150);
/// A yield that takes longer than this gave the CPU to somebody.
const SWITCHED: Duration = Duration::from_micros(10);

/// A turn that began when it was made.
pub struct Turn {
    began: Instant,
    wanted: bool,
}

impl Turn {
    /// Begins, not knowing whether anybody else wants the CPU.
    pub fn begin() -> Self {
        Self { began: Instant::now(), wanted: false }
    }

    /// Gives way if the turn was long enough. Only for places where no lock of the server is held.
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
