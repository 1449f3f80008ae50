//! Samples registers and stacks of running threads, with one perf event sample per thread.
//!
//! For a running thread, the registers saved by the kernel are stale: they date from its last kernel entry.
//! Therefore a software clock event is opened on the thread. The event overflows once while the thread runs,
//! and records its user registers and user stack.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use perf_event_open_sys as sys;
use sys::bindings::{perf_event_attr, perf_event_mmap_page};

use super::Registers;

/// CPU time in ns that the thread runs before the sample is taken.
const PERIOD_NS: u64 = 20_000;
/// Stack bytes in a sample. The whole record must be smaller than 64 KiB. MySQL 9.7 reads pages at a stack
/// depth of 40 KB.
const STACK_BYTES: u32 = 60 * 1024;
/// Number of data pages of a ring buffer, a power of two; enough for one record.
const RING_PAGES: usize = 32;
const PAGE: usize = 4096;
/// Number of rings per CPU that are open at the same time; each takes 132 KB. No more threads than CPUs can
/// run at once, and with two per CPU a user stays within the limit of locked memory (perf_event_mlock_kb, 516
/// KB per CPU).
const RINGS_PER_CPU: usize = 2;
const MAX_RINGS: usize = 64;
/// The registers BP, SP and IP, as numbered in perf_regs.h of x86.
const REGS_MASK: u64 = 1 << 6 | 1 << 7 | 1 << 8;

/// A sample of a running thread.
#[derive(Debug)]
pub struct Sample {
    /// The thread id.
    pub tid: u32,
    /// The user registers at the time of the sample, or at the entry of the system call the thread was in.
    pub registers: Registers,
    /// The stack bytes from the stack pointer upwards.
    pub stack: Vec<u8>,
}

/// Sample the first `max_rings()` of `tids`, waiting at most `timeout`. Threads that do not run in that
/// time are missing from the result.
///
/// Errors: those of perf_event_open (EACCES without CAP_PERFMON, EMFILE, …) if it refuses the first thread;
/// threads that have exited are skipped.
pub fn sample(tids: &[u32], timeout: Duration) -> io::Result<Vec<Sample>> {
    let mut armed = Vec::new();
    for tid in tids.iter().take(max_rings()) {
        match Armed::new(*tid) {
            Ok(event) => armed.push(event),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if armed.is_empty() => return Err(error),
            Err(_) => break, // descriptors or locked memory are used up
        }
    }
    let deadline = Instant::now() + timeout;
    let mut samples = Vec::new();
    while !armed.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !wait(&armed, left)? {
            break;
        }
        armed.retain(|event| match event.take() {
            Some(sample) => {
                samples.push(sample);
                false
            }
            None => true,
        });
    }
    Ok(samples)
}

/// Return the maximum number of threads that are sampled at once.
pub fn max_rings() -> usize {
    // SAFETY: sysconf takes and returns a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    (RINGS_PER_CPU * usize::try_from(cpus).unwrap_or(1)).clamp(RINGS_PER_CPU, MAX_RINGS)
}

/// Wait until one of the events has a sample; return false on timeout.
fn wait(armed: &[Armed], left: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> = armed
        .iter()
        .map(|event| libc::pollfd { fd: event.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let left = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
    // SAFETY: the array is passed with its length. The array and the timespec outlive the call. The signal
    // mask may be null.
    let ready = unsafe {
        libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &raw const left, ptr::null())
    };
    if ready < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(true) } else { Err(error) };
    }
    Ok(ready > 0)
}

struct Armed {
    tid: u32,
    fd: OwnedFd,
    ring: *mut libc::c_void,
}

impl Armed {
    fn new(tid: u32) -> io::Result<Self> {
        let mut attributes = attributes();
        // SAFETY: `attributes` is initialised and outlives the call.
        let fd: RawFd = unsafe {
            sys::perf_event_open(
                &raw mut attributes,
                tid as libc::pid_t,
                -1,
                -1,
                sys::bindings::PERF_FLAG_FD_CLOEXEC.into(),
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: perf_event_open just returned this descriptor; nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let length = (1 + RING_PAGES) * PAGE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let ring = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let armed = Self { tid, fd, ring };
        // Allow one overflow, after which the kernel disables the event.
        // SAFETY: the descriptor is open, and this ioctl takes a number.
        if unsafe { sys::ioctls::REFRESH(armed.fd.as_raw_fd(), 1) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(armed)
    }

    /// Return the sample if it has arrived.
    fn take(&self) -> Option<Sample> {
        // SAFETY: `ring` points to the header page, which stays mapped until drop.
        let page = unsafe { &*self.ring.cast::<perf_event_mmap_page>() };
        // SAFETY: the pointer is to an aligned field of the mapped page. It is read once and volatile because
        // the kernel writes it.
        let head = unsafe { ptr::read_volatile(&raw const page.data_head) } as usize;
        fence(Ordering::Acquire);
        // The ring is larger than one sample and the records that come with it, so it never wraps.
        // SAFETY: RING_PAGES data pages follow the header page and stay mapped until drop; the length is
        // clamped to them.
        let data = unsafe {
            std::slice::from_raw_parts(self.ring.cast::<u8>().add(PAGE), head.min(RING_PAGES * PAGE))
        };
        parse(data, self.tid)
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: `ring` was mapped in `new` with this length and is unmapped only here.
        unsafe { libc::munmap(self.ring, (1 + RING_PAGES) * PAGE) };
    }
}

fn attributes() -> perf_event_attr {
    let mut attributes = perf_event_attr {
        type_: sys::bindings::PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: sys::bindings::PERF_COUNT_SW_CPU_CLOCK.into(),
        sample_type: (sys::bindings::PERF_SAMPLE_REGS_USER | sys::bindings::PERF_SAMPLE_STACK_USER).into(),
        sample_regs_user: REGS_MASK,
        sample_stack_user: STACK_BYTES,
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = PERIOD_NS;
    attributes.__bindgen_anon_2.wakeup_events = 1;
    attributes.set_disabled(1);
    attributes
}

/// Find and parse the first PERF_RECORD_SAMPLE. It contains the ABI, then BP, SP and IP, then the stack, with
/// the reserved size before it and the copied size after it.
fn parse(mut data: &[u8], tid: u32) -> Option<Sample> {
    loop {
        let kind = u32::from_le_bytes(data.get(..4)?.try_into().ok()?);
        let size = u16::from_le_bytes(data.get(6..8)?.try_into().ok()?) as usize;
        let body = data.get(8..size)?;
        if kind == sys::bindings::PERF_RECORD_SAMPLE {
            return parse_sample(body, tid);
        }
        data = &data[size..];
    }
}

fn parse_sample(body: &[u8], tid: u32) -> Option<Sample> {
    let long = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
    let abi = long(0)?;
    if abi == 0 {
        return None;
    }
    let registers = Registers { bp: long(8)?, sp: long(16)?, ip: long(24)? };
    let reserved = long(32)? as usize;
    let copied = if reserved == 0 { 0 } else { long(40 + reserved)? as usize };
    let stack = body.get(40..40 + copied.min(reserved))?.to_vec();
    Some(Sample { tid, registers, stack })
}
