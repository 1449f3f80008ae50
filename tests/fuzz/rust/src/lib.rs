//! The oracle that all fuzz targets share: an input takes less than a second and less than 64 MB.

use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// CPU seconds that one input may take.
pub const MAX_SECONDS: f64 = 1.0;
/// Bytes that one input may allocate beyond what was allocated before it.
pub const MAX_BYTES: usize = 64 << 20;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counting.
struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = ALLOCATED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Run `work`.
///
/// # Panics
/// If it takes more CPU time or memory than one input may.
pub fn within_limits(work: impl FnOnce()) {
    let before = ALLOCATED.load(Relaxed);
    PEAK.store(before, Relaxed);
    let began = cpu_seconds();
    work();
    let seconds = cpu_seconds() - began;
    let bytes = PEAK.load(Relaxed).saturating_sub(before);
    assert!(seconds < MAX_SECONDS, "{seconds:.2} s of CPU for one input");
    assert!(bytes < MAX_BYTES, "{bytes} bytes for one input");
}

/// CPU time of this thread: unlike the wall clock it does not grow when the machine is busy.
fn cpu_seconds() -> f64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer leads to a timespec of ours.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    assert_eq!(result, 0);
    // SAFETY: the call succeeded, so it was written.
    let time = unsafe { time.assume_init() };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
