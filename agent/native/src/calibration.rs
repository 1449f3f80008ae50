//! A function of our own to be probed, so that the cost of a hit is measured on the host it is paid on.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// As much as the caches of one core hold, nearly all CPUs' second level.
const COLD_BYTES: usize = 1 << 20;
const CACHE_LINE: usize = 64;

/// Name of the function in the symbol table that begins as most functions do. The kernel emulates its first
/// instruction (a push) at a hit.
pub const FUNCTION: &str = "innoscope_calibration";
/// Name of the one that begins with an instruction which the kernel has to execute out of line, in a single step:
/// several times as expensive.
pub const STEPPED_FUNCTION: &str = "innoscope_calibration_stepped";

/// Does next to nothing, so what a call of it takes is what the probe takes.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
    std::arch::naked_asm!("push rbp", "mov rbp, rsp", "lea rax, [rdi + 1]", "pop rbp", "ret")
}

/// As the other, with another beginning.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub extern "C" fn innoscope_calibration_stepped(value: u64) -> u64 {
    std::arch::naked_asm!("lea rax, [rdi + 1]", "push rbp", "pop rbp", "ret")
}

/// Does next to nothing.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
    black_box(value).wrapping_add(1)
}

/// Does next to nothing.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn innoscope_calibration_stepped(value: u64) -> u64 {
    black_box(value).wrapping_add(2)
}

/// The median time of so many calls of the one or the other, with what it takes to read the clock.
///
/// Before each the caches are filled with something else, as a server does between two calls of a function: a hit
/// costs twice as much then. The median leaves out the calls in which somebody else got the CPU.
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
