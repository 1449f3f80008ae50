//! The check that all fuzz targets share: an input must take less than a second of CPU time and allocate less
//! than 64 MiB. Also the targets that agent/native/tests/mutated_seeds.rs runs too, without libFuzzer.

pub mod elf;
pub mod pack;
pub mod unwind;

use std::alloc::{GlobalAlloc, Layout, System};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// CPU time that one input may take, in seconds.
pub const MAX_SECONDS: f64 = 1.0;
/// Bytes that one input may allocate in addition to those allocated before it.
pub const MAX_BYTES: usize = 64 << 20;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// A wrapper around the system allocator that counts the allocated bytes.
struct Counting;

// SAFETY: every call is passed unchanged to the system allocator, which meets the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = ALLOCATED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller meets the contract of `alloc`, and the layout is passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller meets the contract of `dealloc`, and pointer and layout are passed on unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Run `work` and check its CPU time and memory.
///
/// # Panics
/// Panics if `work` exceeds a limit.
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

/// Call `work` with the path of a temporary file that contains `data`.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn with_file(data: &[u8], work: impl FnOnce(&Path)) {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let memory = PathBuf::from("/dev/shm"); // only for speed
        let folder = if memory.is_dir() {
            memory
        } else {
            std::env::temp_dir()
        };
        folder.join(format!("innoscope-fuzz-{}", std::process::id()))
    });
    std::fs::write(path, data).expect("the folder of temporary files is writable");
    work(path);
    std::fs::remove_file(path).expect("the file exists");
}

/// Return the CPU time of this thread in seconds. Unlike wall-clock time, it does not grow when the
/// machine is busy.
fn cpu_seconds() -> f64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the pointer is to a local timespec, which the call writes.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr()) };
    assert_eq!(result, 0);
    // SAFETY: the call succeeded, so the value is initialized.
    let time = unsafe { time.assume_init() };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
