//! Opens perf events, such as software clock events, and reads the records in their ring buffers.
//!
//! A clock event measures the time for which one thread runs, or the time that passes on one CPU. Each time
//! the period elapses, the kernel can write the user registers and the user stack of the running thread to a
//! ring buffer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use perf_event_open_sys as sys;
use sys::bindings::{perf_event_attr, perf_event_mmap_page};

use crate::arch::{Arch, NATIVE};
use crate::snapshot::Registers;

/// Type of the records that contain a sample.
pub const SAMPLE: u32 = sys::bindings::PERF_RECORD_SAMPLE;
/// Type of the records that count lost records.
pub const LOST: u32 = sys::bindings::PERF_RECORD_LOST;
/// Stack bytes in a sample. The whole record must be smaller than 64 KiB. In MySQL 9.7, the stack is 40 KB
/// deep when a thread reads a page.
const STACK_BYTES: u32 = 60 * 1024;

/// Return the attributes of a clock event with this period, which does not sample anything yet.
pub fn clock(period_ns: u64) -> perf_event_attr {
    let mut attributes = perf_event_attr {
        type_: sys::bindings::PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: sys::bindings::PERF_COUNT_SW_CPU_CLOCK.into(),
        ..Default::default()
    };
    attributes.__bindgen_anon_1.sample_period = period_ns;
    attributes
}

/// Return the attributes of a disabled clock event that samples user registers and stacks.
pub fn stack_clock(period_ns: u64) -> perf_event_attr {
    let mut attributes = perf_event_attr {
        sample_type: (sys::bindings::PERF_SAMPLE_REGS_USER | sys::bindings::PERF_SAMPLE_STACK_USER).into(),
        sample_regs_user: NATIVE.perf.mask(),
        sample_stack_user: STACK_BYTES,
        ..clock(period_ns)
    };
    attributes.set_disabled(1);
    attributes
}

/// Open an event on a thread (-1: all) and a CPU (-1: all).
pub fn open(mut attributes: perf_event_attr, tid: i32, cpu: i32) -> io::Result<OwnedFd> {
    let flags = sys::bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: `attributes` is initialized and outlives the call.
    let event: RawFd = unsafe { sys::perf_event_open(&raw mut attributes, tid, cpu, -1, flags) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: perf_event_open just returned this descriptor; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(event) })
}

/// The ring buffer of an event, mapped into memory. The event exists until the ring is dropped, even if its
/// descriptor is closed earlier.
pub struct Ring {
    start: *mut libc::c_void,
    /// Size of the header, which precedes the data: one page.
    header_bytes: usize,
    data_bytes: usize,
    /// Position up to which records have been read; it never wraps.
    tail: u64,
    /// A copy of a record that wraps around the end of the ring.
    wrapped: Vec<u8>,
}

// SAFETY: the mapping is not bound to a thread, and only one thread at a time uses it, because `read` takes
// &mut self.
unsafe impl Send for Ring {}

impl Ring {
    /// Map a ring buffer of `data_bytes`, a power-of-two number of pages.
    ///
    /// Errors: EPERM if the user's limit on locked memory (perf_event_mlock_kb) is exceeded.
    pub fn map(event: &OwnedFd, data_bytes: usize) -> io::Result<Self> {
        let header_bytes = page_bytes();
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                header_bytes + data_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                event.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start, header_bytes, data_bytes, tail: 0, wrapped: Vec::new() })
    }

    /// Pass the type and the contents of up to `max` records to `take`, and return their number.
    pub fn read(&mut self, max: usize, take: &mut dyn FnMut(u32, &[u8])) -> usize {
        self.read_with_flags(max, &mut |kind, _, body| take(kind, body))
    }

    /// Pass the type, the flags (`misc` in the header) and the contents of up to `max` records to `take`, and
    /// return their number.
    pub fn read_with_flags(&mut self, max: usize, take: &mut dyn FnMut(u32, u16, &[u8])) -> usize {
        let page = self.start.cast::<perf_event_mmap_page>();
        // SAFETY: `start` points to the header page, which stays mapped until drop. The read is volatile,
        // because the kernel writes the field.
        let head = unsafe { ptr::read_volatile(&raw const (*page).data_head) };
        fence(Ordering::Acquire);
        // SAFETY: the data follows the header page and stays mapped until drop. The kernel does not write
        // between `tail` and `head`, which are the only bytes that are used.
        let data = unsafe {
            std::slice::from_raw_parts(self.start.cast::<u8>().add(self.header_bytes), self.data_bytes)
        };
        let mut count = 0;
        while count < max
            && let Some((kind, length)) = next_record(data, self.tail, head, &mut self.wrapped)
        {
            let at = self.tail as usize % data.len();
            let record = data.get(at..at + length).unwrap_or(&self.wrapped);
            take(kind, u16::from_le_bytes([record[4], record[5]]), &record[HEADER..]);
            self.tail += length as u64;
            count += 1;
        }
        // The kernel may overwrite the records only after they have been read.
        fence(Ordering::SeqCst);
        // SAFETY: as above; the mapping is writable.
        unsafe { ptr::write_volatile(&raw mut (*page).data_tail, self.tail) };
        count
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `start` was mapped in `map` with this length and is unmapped only here.
        unsafe { libc::munmap(self.start, self.header_bytes + self.data_bytes) };
    }
}

/// Return the size of a page, which is 4, 16 or 64 KiB on arm64.
fn page_bytes() -> usize {
    // SAFETY: sysconf takes and returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Size of `struct perf_event_header`: type (32 bits), flags and size (16 bits each).
const HEADER: usize = 8;

/// Return the type and size of the record at `tail`; None if there is none. A record that wraps around the
/// end of the data is copied to `wrapped`. Records are aligned to 8 bytes, so a header never wraps.
fn next_record(data: &[u8], tail: u64, head: u64, wrapped: &mut Vec<u8>) -> Option<(u32, usize)> {
    let at = tail as usize % data.len();
    if head.checked_sub(tail)? < HEADER as u64 {
        return None;
    }
    let header = data.get(at..at + HEADER)?;
    let kind = u32::from_le_bytes(header[..4].try_into().ok()?);
    let length = usize::from(u16::from_le_bytes(header[6..].try_into().ok()?));
    if length < HEADER || length as u64 > head - tail {
        return None;
    }
    if at + length > data.len() {
        wrapped.clear();
        wrapped.extend_from_slice(&data[at..]);
        wrapped.extend_from_slice(data.get(..at + length - data.len())?);
    }
    Some((kind, length))
}

/// Parse the user registers and the user stack at the end of a sample: the ABI, the registers, the reserved
/// size of the stack, the stack and its copied size. Return None if the thread has no user registers.
pub fn user_stack(body: &[u8]) -> Option<(Registers, &[u8])> {
    stack_of(NATIVE, body)
}

fn stack_of<'body>(arch: &Arch, body: &'body [u8]) -> Option<(Registers, &'body [u8])> {
    if long(body, 0)? == 0 {
        return None;
    }
    let registers = arch.perf.read(|index| long(body, 8 * (1 + index)))?;
    let body = body.get(8 * (1 + arch.perf.count())..)?;
    let reserved = usize::try_from(long(body, 0)?).ok()?;
    let stack = body.get(8..)?.get(..reserved)?;
    let copied = if reserved == 0 { 0 } else { usize::try_from(long(body, 8 + reserved)?).ok()? };
    Some((registers, &stack[..copied.min(reserved)]))
}

/// Return the 64-bit word at this offset.
pub fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.get(..8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{AARCH64, X86_64};

    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = (HEADER + body.len()) as u16;
        [&kind.to_le_bytes()[..], &[0, 0], &length.to_le_bytes(), body].concat()
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn finds_records_and_copies_those_that_wrap() {
        let (mut data, mut wrapped) = (vec![0; 64], Vec::new());
        let whole = record(SAMPLE, &[7; 24]);
        data[48..].copy_from_slice(&whole[..16]);
        data[..16].copy_from_slice(&whole[16..]);
        assert_eq!(next_record(&data, 64 + 48, 64 + 80, &mut wrapped), Some((SAMPLE, 32)));
        assert_eq!(wrapped, whole);
        assert_eq!(next_record(&data, 64 + 80, 64 + 80, &mut wrapped), None);
    }

    #[test]
    fn malformed_records_are_not_read() {
        let mut wrapped = Vec::new();
        let mut data = record(SAMPLE, &[0; 8]);
        assert_eq!(next_record(&data, 0, 8, &mut wrapped), None, "longer than what was written");
        data[6] = 4;
        assert_eq!(next_record(&data, 0, 16, &mut wrapped), None, "shorter than its header");
        assert_eq!(next_record(&data, 16, 0, &mut wrapped), None, "behind the reader");
    }

    #[test]
    fn parses_registers_and_stack() {
        let body = words(&[2, 0x30, 0x20, 0x10, 16, 0xaa, 0xbb, 8]);
        let (registers, stack) = stack_of(&X86_64, &body).expect("a sample");
        assert_eq!(registers, Registers { ip: 0x10, sp: 0x20, bp: Some(0x30), lr: None });
        assert_eq!(stack, words(&[0xaa]), "only what was copied");
        let body = words(&[2, u64::MAX, 0x20, 0x10, 0]);
        let (registers, stack) = stack_of(&X86_64, &body).expect("a sample");
        assert_eq!((registers.bp, stack.len()), (None, 0));
        assert!(stack_of(&X86_64, &words(&[0, 0])).is_none());
    }

    #[test]
    fn parses_the_registers_of_other_architectures() {
        assert_eq!(X86_64.perf.mask(), 0x1c0);
        assert_eq!(AARCH64.perf.mask(), 0x1_e000_0000);
        let body = words(&[2, 0x30, 0x40, 0x20, 0x10, 8, 0xaa, 8]);
        let (registers, stack) = stack_of(&AARCH64, &body).expect("a sample");
        assert_eq!(registers, Registers { ip: 0x10, sp: 0x20, bp: Some(0x30), lr: Some(0x40) });
        assert_eq!(stack, words(&[0xaa]));
    }

    #[test]
    fn truncated_and_malformed_samples_do_not_panic() {
        let body = words(&[2, 0x30, 0x20, 0x10, 16, 0xaa, 0xbb, 8]);
        for length in 0..body.len() {
            assert!(stack_of(&X86_64, &body[..length]).is_none());
        }
        for size in [17, 1 << 40, u64::MAX] {
            assert!(stack_of(&X86_64, &words(&[2, 1, 2, 3, size, 4, 5, 6])).is_none());
        }
        let body = words(&[2, 1, 2, 3, 8, 4, u64::MAX]);
        let (_, stack) = stack_of(&X86_64, &body).expect("a sample");
        assert_eq!(stack.len(), 8);
    }
}
