//! Configures the C library's malloc for processes that run for weeks.

use libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, c_int};

/// Maximum number of arenas. By default, each thread may get its own arena, whose free memory no other
/// thread can use. Threads seldom compete for one arena, because most of them allocate while they hold
/// the GIL.
const ARENAS: c_int = 1;

/// Blocks of at least this many bytes are mapped individually, and unmapped when they are freed. This is
/// also the maximum number of free bytes kept at the end of an arena. By default, glibc raises these limits
/// when large blocks are freed, up to 32 MiB and 64 MiB, respectively.
const THRESHOLD: c_int = 128 << 10;

/// Limit the freed memory that malloc keeps. Call this before any thread starts.
pub fn limit_retained() {
    for (parameter, value) in
        [(M_ARENA_MAX, ARENAS), (M_MMAP_THRESHOLD, THRESHOLD), (M_TRIM_THRESHOLD, THRESHOLD)]
    {
        // SAFETY: mallopt takes numbers, and rejects invalid ones.
        unsafe { libc::mallopt(parameter, value) };
    }
}
