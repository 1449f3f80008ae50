//! Reads a BPF ring buffer by descriptor.

use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

type Callback = NonNull<dyn FnMut(&[u8])>;

/// The reader of a ring buffer. The map's descriptor may be closed after `open`.
pub struct Ring {
    inner: NonNull<libbpf_sys::ring_buffer>,
    /// The context of `inner`: the callback for records while `read` runs. This struct owns it, and frees it
    /// after `inner`.
    callback: *mut Option<Callback>,
}

// SAFETY: libbpf's reader is not bound to a thread, and only one thread at a time uses it, because all
// methods take &mut self.
unsafe impl Send for Ring {}

impl Ring {
    /// Map the ring buffer into memory. Errors: EINVAL if the descriptor is not a ring buffer; EACCES and
    /// other errors of the kernel.
    pub fn open(descriptor: RawFd) -> io::Result<Self> {
        let callback = Box::into_raw(Box::new(None));
        // SAFETY: the context is freed only after the reader, and null options are allowed.
        let ring = unsafe {
            libbpf_sys::ring_buffer__new(descriptor, Some(on_record), callback.cast::<c_void>(), ptr::null())
        };
        if let Some(inner) = NonNull::new(ring) {
            return Ok(Self { inner, callback });
        }
        let error = io::Error::last_os_error();
        // SAFETY: the pointer is from Box::into_raw above, and no reader exists that could use it.
        drop(unsafe { Box::from_raw(callback) });
        Err(error)
    }

    /// Pass up to `max` available records to `take`, and return their number.
    pub fn read(&mut self, max: usize, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        // SAFETY: only the lifetime is erased, and the pointer is cleared before `take` goes out of scope.
        let erased =
            unsafe { std::mem::transmute::<NonNull<dyn FnMut(&[u8]) + '_>, Callback>(NonNull::from(take)) };
        // SAFETY: `callback` is valid until drop; the reader is open and calls it only on this thread, within
        // the call.
        let count = unsafe {
            *self.callback = Some(erased);
            let count = libbpf_sys::ring_buffer__consume_n(self.inner.as_ptr(), max as libbpf_sys::size_t);
            *self.callback = None;
            count
        };
        usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the reader and its context were allocated in `open` and are freed only here, in this order.
        unsafe {
            libbpf_sys::ring_buffer__free(self.inner.as_ptr());
            drop(Box::from_raw(self.callback));
        }
    }
}

unsafe extern "C" fn on_record(context: *mut c_void, data: *mut c_void, size: libbpf_sys::size_t) -> i32 {
    // SAFETY: libbpf passes the context given in `open`, which is valid until the ring is dropped.
    if let Some(mut take) = unsafe { *context.cast::<Option<Callback>>() } {
        // SAFETY: `data` and `size` describe a record that stays in the ring until this returns, and `read`
        // keeps `take` borrowed.
        unsafe { take.as_mut()(std::slice::from_raw_parts(data.cast::<u8>(), size as usize)) };
    }
    0
}
