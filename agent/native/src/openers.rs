//! Opens the descriptors of probes in child processes.
//!
//! The kernel first sets the breakpoint and then creates the descriptor. If the descriptor cannot be created, the
//! kernel removes the breakpoint again, which fails if a SIGKILL is pending for the task (see `closers`). When the
//! OOM killer kills a process, both happen: its threads get no memory for a descriptor, and a SIGKILL is pending.
//! Therefore no thread of this process opens descriptors.
//!
//! An opener is a child that shares our descriptors, but not our memory, so it is not killed together with us. If
//! we are killed while it opens a descriptor, it is the last owner of all descriptors, and drops them by exiting.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use crate::closers::{Child, pipe};

/// Call `open` in an opener, and return the descriptor that it opened.
///
/// Errors: as for `open`, or if the process cannot be created.
///
/// # Safety
/// `open` must neither allocate memory nor take locks: another thread of this process may hold the allocator's
/// lock, which nothing releases in the child.
pub unsafe fn open(open: impl FnOnce() -> io::Result<OwnedFd>) -> io::Result<OwnedFd> {
    let (reader, writer) = pipe()?;
    let child = Child::start(libc::CLONE_FILES, || {
        let result = match open() {
            Ok(descriptor) => descriptor.into_raw_fd(),
            Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
        };
        // SAFETY: the pointer is to a local variable of this size.
        unsafe { libc::write(writer.as_raw_fd(), (&raw const result).cast(), size_of_val(&result)) };
    })?;
    child.wait();
    drop(writer);
    let mut result = Vec::new();
    File::from(reader).read_to_end(&mut result)?;
    // An opener that was killed has written nothing.
    let result = result.try_into().map_or(-libc::ECANCELED, i32::from_ne_bytes);
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the opener opened this descriptor in the table that it shares with us, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_path(path: &std::ffi::CStr) -> io::Result<OwnedFd> {
        // SAFETY: the path outlives the call; the closure makes one system call.
        unsafe {
            open(|| match libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) {
                -1 => Err(io::Error::last_os_error()),
                descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
            })
        }
    }

    #[test]
    fn descriptor_is_ours() {
        let mut text = String::new();
        let descriptor = open_path(c"Cargo.toml").expect("readable");
        File::from(descriptor).read_to_string(&mut text).expect("readable");
        assert!(!text.is_empty());
    }

    #[test]
    fn errors_are_those_of_the_call() {
        let error = open_path(c"no such file").expect_err("it does not exist");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_opener_that_ends_early_is_an_error() {
        // SAFETY: the closure makes one system call.
        let result = unsafe {
            open(|| {
                libc::raise(libc::SIGKILL);
                Err(io::Error::from_raw_os_error(libc::EIO))
            })
        };
        assert_eq!(result.expect_err("it was killed").raw_os_error(), Some(libc::ECANCELED));
    }

    #[test]
    fn several_threads_can_open_at_once() {
        let threads: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(|| (0..20).all(|_| open_path(c"Cargo.toml").is_ok())))
            .collect();
        for thread in threads {
            assert!(thread.join().expect("no panic"));
        }
    }
}
