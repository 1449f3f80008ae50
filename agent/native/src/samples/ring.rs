//! Reading a BPF ring buffer by descriptor.

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

type Take = NonNull<dyn FnMut(&[u8])>;

/// The reader's end of a ring buffer; the descriptor is not needed after `open`.
pub struct Ring {
    inner: NonNull<libbpf_sys::ring_buffer>,
    /// Where `inner` finds who takes the records; ours to free, after it.
    taker: *mut Option<Take>,
}

// SAFETY: the reader is used by one thread at a time: all of its methods take &mut self.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring into our memory. Errors: EINVAL for what is no ring buffer; EACCES and the like.
    pub fn open(descriptor: RawFd) -> io::Result<Self> {
        let taker = Box::into_raw(Box::new(None));
        // SAFETY: what the context points to lives until the reader is freed; there are no options.
        let ring = unsafe {
            libbpf_sys::ring_buffer__new(descriptor, Some(on_record), taker.cast::<c_void>(), ptr::null())
        };
        if let Some(inner) = NonNull::new(ring) {
            return Ok(Self { inner, taker });
        }
        let error = io::Error::last_os_error();
        // SAFETY: made above, and nobody else has it.
        drop(unsafe { Box::from_raw(taker) });
        Err(error)
    }

    /// Hands over at most `most` of the records that are there; how many that were.
    pub fn read(&mut self, most: usize, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        // SAFETY: only the lifetime is dropped, and the pointer does not outlive this call.
        let erased =
            unsafe { std::mem::transmute::<NonNull<dyn FnMut(&[u8]) + '_>, Take>(NonNull::from(take)) };
        // SAFETY: the taker is ours; the reader is open and calls it on this thread only.
        let count = unsafe {
            *self.taker = Some(erased);
            let count = libbpf_sys::ring_buffer__consume_n(self.inner.as_ptr(), most as libbpf_sys::size_t);
            *self.taker = None;
            count
        };
        usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: both were made in `open` and are freed once, the reader first.
        unsafe {
            libbpf_sys::ring_buffer__free(self.inner.as_ptr());
            drop(Box::from_raw(self.taker));
        }
    }
}

unsafe extern "C" fn on_record(context: *mut c_void, data: *mut c_void, size: libbpf_sys::size_t) -> i32 {
    // SAFETY: the context is the taker of the ring, whose `read` is under way.
    if let Some(mut take) = unsafe { *context.cast::<Option<Take>>() } {
        // SAFETY: the record stays in the ring until we return; `read` holds `take` borrowed.
        unsafe { take.as_mut()(std::slice::from_raw_parts(data.cast::<u8>(), size as usize)) };
    }
    0
}
