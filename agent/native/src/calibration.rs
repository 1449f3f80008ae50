//! Functions that are probed to measure the cost of a probe hit on this host.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::arch::host::{innoscope_calibration, innoscope_calibration_stepped};

/// Number of bytes that are written to evict other data from one core's L1 and L2 caches. Some CPUs have larger
/// L2 caches.
const COLD_BYTES: usize = 1 << 20;
const CACHE_LINE: usize = 64;

/// Symbol name of a function whose first instruction the kernel emulates when the probe is hit. On x86-64, this
/// is a push instruction, as in most functions.
pub const FUNCTION: &str = "innoscope_calibration";
/// Symbol name of a function whose first instruction the kernel cannot emulate. The kernel has to single-step
/// it out of line, which costs several times as much as emulating it.
pub const STEPPED_FUNCTION: &str = "innoscope_calibration_stepped";

/// Call one of the functions `calls` times and return the median duration, including the time to read the
/// clock.
///
/// Before each call, fill the caches with other data, as a server does between two calls to a function.
/// This doubles the cost of a hit. Calls that another thread interrupts hardly affect the median.
pub fn run(calls: u32, stepped: bool) -> Duration {
    let function = if stepped { innoscope_calibration_stepped } else { innoscope_calibration };
    let mut cold = vec![0_u8; COLD_BYTES];
    let mut value = 0;
    let mut times: Vec<Duration> = (0..calls)
        .map(|_| {
            for line in cold.iter_mut().step_by(CACHE_LINE) {
                *line = line.wrapping_add(1);
            }
            let began = Instant::now();
            value = black_box(function)(value);
            began.elapsed()
        })
        .collect();
    black_box((value, cold));
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
