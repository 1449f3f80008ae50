//! Functions that are probed to measure the cost of a probe hit on this host.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of bytes that are written to evict all other data from one core's caches. Few CPUs have L2 caches
/// larger than this.
const COLD_BYTES: usize = 1 << 20;
const CACHE_LINE: usize = 64;

/// Symbol name of a function that begins with a push instruction, as most functions do. The kernel emulates
/// this instruction when the probe is hit.
pub const FUNCTION: &str = "innoscope_calibration";
/// Symbol name of a function whose first instruction the kernel cannot emulate. The kernel has to single-step
/// it out of line, which costs several times as much as emulating it.
pub const STEPPED_FUNCTION: &str = "innoscope_calibration_stepped";

/// Do almost nothing, so that the duration of a probed call is the cost of the probe.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "lea rax, [rdi + 1]", "pop rbp", "ret")
}

/// Do almost nothing, but begin with an instruction that the kernel has to single-step.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn innoscope_calibration_stepped(value: u64) -> u64 {
    std::arch::naked_asm!("lea rax, [rdi + 1]", "push rbp", "pop rbp", "ret")
}

/// Do almost nothing, so that the duration of a probed call is the cost of the probe.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
    black_box(value).wrapping_add(1)
}

/// Do almost nothing, so that the duration of a probed call is the cost of the probe.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn innoscope_calibration_stepped(value: u64) -> u64 {
    black_box(value).wrapping_add(2)
}

/// Call one of the functions `calls` times and return the median duration, including the time to read the
/// clock.
///
/// Before each call, the caches are filled with other data, as a server does between two calls to a function.
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
