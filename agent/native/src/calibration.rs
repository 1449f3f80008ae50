//! A function of our own to be probed, so that the cost of a hit is measured on the host it is paid on.

use std::hint::black_box;
use std::io;
use std::time::Duration;

/// Name of the function in the symbol table.
pub const FUNCTION: &str = "innoscope_calibration";

/// The function. It does next to nothing, so what a call of it takes is what the probe takes.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn innoscope_calibration(value: u64) -> u64 {
    black_box(value).wrapping_add(1)
}

/// CPU time of this thread for so many calls.
pub fn run(calls: u32) -> io::Result<Duration> {
    let before = cpu_time()?;
    let mut value = 0;
    for _ in 0..calls {
        value = black_box(innoscope_calibration)(value);
    }
    black_box(value);
    Ok(cpu_time()?.saturating_sub(before))
}

fn cpu_time() -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is ours to write.
    if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32))
}
