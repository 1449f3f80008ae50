//! A function of our own to be probed, so that the cost of a hit is measured on the host it is paid on.

use std::hint::black_box;
use std::io;
use std::time::Duration;

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

/// CPU time of this thread for so many calls of the one or the other.
pub fn run(calls: u32, stepped: bool) -> io::Result<Duration> {
    let function = if stepped { innoscope_calibration_stepped } else { innoscope_calibration };
    let before = cpu_time()?;
    let mut value = 0;
    for _ in 0..calls {
        value = black_box(function)(value);
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
