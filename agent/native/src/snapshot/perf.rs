//! Fresh registers and stack of threads that are running: one perf event sample each.
//!
//! What the kernel saved of a running thread is from its last kernel entry, so it is asked to take a sample
//! while the thread runs: a software clock on that thread, one overflow, user registers and user stack.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use perf_event_open_sys as sys;
use sys::bindings::{perf_event_attr, perf_event_mmap_page};

use super::Registers;

/// CPU time of the thread after which the sample is taken.
const PERIOD_NS: u64 = 20_000;
/// Stack bytes in a sample; the whole record must stay below 64 KiB. MySQL 9.7 reads a page 40 KB deep.
const STACK_BYTES: u32 = 60 * 1024;
/// Data pages of the ring: room for one record, a power of two.
const RING_PAGES: usize = 32;
const PAGE: usize = 4096;
/// Rings at the same time, 132 KB each. No more threads than CPUs run at once; with two for each CPU an account stays
/// within the memory that the kernel lets it lock (perf_event_mlock_kb, 516 KB per CPU).
const RINGS_PER_CPU: usize = 2;
const MOST_RINGS: usize = 64;
/// perf_regs.h, x86: BP, SP, IP.
const REGS_MASK: u64 = 1 << 6 | 1 << 7 | 1 << 8;

/// A sample of a running thread.
#[derive(Debug)]
pub struct Sample {
    /// Which thread.
    pub tid: u32,
    /// User registers at the sample, or at the entry of the system call it was in.
    pub registers: Registers,
    /// Stack bytes from the stack pointer upwards.
    pub stack: Vec<u8>,
}

/// Samples each of the first `most_rings()` of `tids` that runs within `patience`. Threads that do not run in that
/// time are not in the answer.
///
/// Errors: of perf_event_open (EACCES without CAP_PERFMON, EMFILE, …) when it refuses all of them, unless they ended.
pub fn sample(tids: &[u32], patience: Duration) -> io::Result<Vec<Sample>> {
    let mut armed = Vec::new();
    for tid in tids.iter().take(most_rings()) {
        match Armed::new(*tid) {
            Ok(event) => armed.push(event),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) if armed.is_empty() => return Err(error),
            Err(_) => break, // of descriptors or locked memory there is no more
        }
    }
    let deadline = Instant::now() + patience;
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

/// How many threads are sampled at once.
pub fn most_rings() -> usize {
    // SAFETY: asks for a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    (RINGS_PER_CPU * usize::try_from(cpus).unwrap_or(1)).clamp(RINGS_PER_CPU, MOST_RINGS)
}

/// Waits until one of the events has something or the time is over; false at the end of the time.
fn wait(armed: &[Armed], left: Duration) -> io::Result<bool> {
    let mut polled: Vec<libc::pollfd> = armed
        .iter()
        .map(|event| libc::pollfd { fd: event.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    let left = libc::timespec { tv_sec: left.as_secs() as libc::time_t, tv_nsec: left.subsec_nanos().into() };
    // SAFETY: the array and the time live through the call; no signal mask is given.
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
        // SAFETY: attributes outlives the call; the result is a new descriptor or -1.
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
        // SAFETY: fresh and ours.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let length = (1 + RING_PAGES) * PAGE;
        // SAFETY: a new mapping of our own descriptor.
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
        // One overflow, then the kernel disables the event by itself.
        // SAFETY: an ioctl on our own descriptor that takes a number.
        if unsafe { sys::ioctls::REFRESH(armed.fd.as_raw_fd(), 1) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(armed)
    }

    /// The sample, once it is there.
    fn take(&self) -> Option<Sample> {
        // SAFETY: the first page of the ring, mapped while self lives.
        let page = unsafe { &*self.ring.cast::<perf_event_mmap_page>() };
        // SAFETY: a plain field that the kernel writes; read once.
        let head = unsafe { ptr::read_volatile(&raw const page.data_head) } as usize;
        fence(Ordering::Acquire);
        // The ring is larger than all that one sample and its companions need, so nothing wraps.
        // SAFETY: the data pages follow the first page and are mapped while self lives.
        let data = unsafe {
            std::slice::from_raw_parts(self.ring.cast::<u8>().add(PAGE), head.min(RING_PAGES * PAGE))
        };
        parse(data, self.tid)
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        // SAFETY: the mapping made in new, unmapped once.
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

/// Finds the first PERF_RECORD_SAMPLE: abi, then BP, SP and IP, then the stack with its sizes around it.
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
