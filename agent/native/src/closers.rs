//! Closes the descriptors of probes in helper processes.
//!
//! The kernel removes a breakpoint in the context of the task that drops the last reference to the probe. If a
//! SIGKILL is pending for that task, the breakpoint remains forever ("leaking uprobe"). Therefore the threads
//! of this process must not drop the last reference: the OOM killer, `cgroup.kill` or a core dump can kill
//! them at any time.
//!
//! A closer process drops the reference by exiting. An exiting task receives no more signals, and by then it
//! has already released its address space, which is a private copy of ours.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// Maximum number of closers. Each takes about 50 ms to close a link, even if other closers run at the same
/// time. A closer has a copy of this process's page tables, which count toward the memory of our cgroup.
const MAX_CLOSERS: usize = 16;

/// Held while closers start. A new closer has copies of all our descriptors. None of these copies may become
/// the last reference, so no other thread may begin to close descriptors while closers start.
static STARTING: Mutex<()> = Mutex::new(());

/// Close all descriptors, and wait until their probes are detached.
pub fn close_all(descriptors: Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    let share = descriptors.len().div_ceil(MAX_CLOSERS);
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(gate) = Gate::new() else { return }; // the descriptors are then dropped and closed on this thread
    let closers: Vec<Child> = descriptors.chunks(share).filter_map(|some| gate.start(some)).collect();
    let go = gate.wait_until_ready();
    drop(starting);
    drop(descriptors); // fast, because the closers still have references
    drop(go);
    for closer in closers {
        closer.wait();
    }
}

/// Two pipes that synchronize us with the closers. Nothing is written to them; end of file is the signal.
struct Gate {
    /// Reaches end of file when every closer has closed all descriptors except its share.
    ready: (OwnedFd, OwnedFd),
    /// Reaches end of file when this process has closed its descriptors or has exited.
    go: (OwnedFd, OwnedFd),
}

impl Gate {
    fn new() -> io::Result<Self> {
        Ok(Self { ready: pipe()?, go: pipe()? })
    }

    /// Start a closer; return None if the process cannot be created.
    fn start(&self, descriptors: &[OwnedFd]) -> Option<Child> {
        let (ready, go) = (self.ready.1.as_raw_fd(), self.go.0.as_raw_fd());
        let mut kept: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).chain([ready, go]).collect();
        kept.sort_unstable();
        let limit = descriptor_limit();
        // SAFETY: this runs in the child, which has its own copy of all memory and descriptors.
        Child::start(0, || unsafe { run_closer(&kept, limit, ready, go) }).ok()
    }

    fn wait_until_ready(self) -> OwnedFd {
        let (ready, written) = self.ready;
        drop(written);
        let _ = File::from(ready).read_to_end(&mut Vec::new()); // nothing is ever written to this pipe
        self.go.1
    }
}

/// A child process that shares no memory with us. Python does not know about it.
pub struct Child {
    pid: libc::pid_t,
}

impl Child {
    /// Run a function in a new child, which then exits. `shared` contains the clone() flags that select what
    /// the child shares with us. The function must neither allocate memory nor take locks: another thread may
    /// hold a lock at the time of the clone, and nothing releases it in the child.
    pub fn start(shared: libc::c_int, run: impl FnOnce()) -> io::Result<Self> {
        without_signals(|| {
            // SAFETY: with these arguments, clone works like fork(), but sends no signal when the child exits:
            // Python must not receive a signal for a child that it did not start.
            let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(shared), 0, 0, 0, 0) };
            if pid == 0 {
                run();
                loop {
                    // SAFETY: the call takes a number and does not return.
                    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
                }
            }
            if pid < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { pid: pid as libc::pid_t })
        })
    }

    /// Wait until the child has exited, and return the signal that killed it; None if it exited by itself.
    pub fn wait(self) -> Option<libc::c_int> {
        let mut status = 0;
        // SAFETY: the pid identifies our child, and the pointer is to a local variable.
        while unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }
}

/// Run a closer: close all descriptors except those in `kept` (in ascending order), signal readiness, and
/// return when `go` reaches end of file.
///
/// # Safety
/// Call it only in a child process that shares neither memory nor descriptors with its parent.
unsafe fn run_closer(kept: &[RawFd], limit: RawFd, ready: RawFd, go: RawFd) {
    let mut first = 0;
    for &descriptor in kept {
        // SAFETY: the descriptors are the child's own copies, and nothing in the child uses them.
        unsafe { close_between(first, descriptor) };
        first = descriptor + 1;
    }
    // SAFETY: the descriptors are the child's own copies, and nothing in the child uses them after they are
    // closed. The byte is read into a local variable, and the process has only this thread.
    unsafe {
        close_between(first, limit.max(first));
        libc::syscall(libc::SYS_close, ready);
        let mut byte = 0_u8;
        libc::syscall(libc::SYS_read, go, &raw mut byte, 1);
    }
}

/// Close the descriptors from `first` to `end` - 1.
///
/// # Safety
/// Nothing may use these descriptors afterward.
unsafe fn close_between(first: RawFd, end: RawFd) {
    // SAFETY: the caller guarantees that the descriptors are no longer used.
    unsafe {
        if end > first && libc::syscall(libc::SYS_close_range, first, end - 1, 0) < 0 {
            for descriptor in first..end {
                libc::syscall(libc::SYS_close, descriptor); // for kernels before Linux 5.9
            }
        }
    }
}

/// Return the limit on descriptors. All open descriptors have lower numbers.
fn descriptor_limit() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a local rlimit.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if result < 0 { RawFd::MAX } else { RawFd::try_from(limit.rlim_cur).unwrap_or(RawFd::MAX) }
}

/// Create a pipe and return its read end and its write end.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// Run a closure with all signals blocked, so that a child created by it starts with them blocked.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: both signal sets are local variables, and zeros are valid for them. The calls cannot fail with
    // these arguments.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn all_descriptors_are_closed_on_return() {
        let (readers, writers): (Vec<_>, Vec<_>) = (0..40).map(|_| pipe().expect("a pipe")).unzip();

        close_all(writers);

        for reader in readers {
            assert_eq!(
                File::from(reader).read(&mut [0]).expect("readable"),
                0,
                "the descriptor is still open"
            );
        }
    }

    #[test]
    fn other_descriptors_stay_open() {
        let (reader, writer) = pipe().expect("a pipe");
        let (_, closed) = pipe().expect("a pipe");

        close_all(vec![closed]);

        File::from(writer).write_all(b"x").expect("writable");
        assert_eq!(File::from(reader).read(&mut [0]).expect("readable"), 1);
    }

    #[test]
    fn several_threads_can_close_at_once() {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(|| {
                    let (reader, writer) = pipe().expect("a pipe");
                    close_all(vec![writer]);
                    assert_eq!(File::from(reader).read(&mut [0]).expect("readable"), 0);
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
    }
}
