//! Processes that close descriptors of probes for us. The kernel takes a breakpoint off in the task that drops the last
//! reference, and leaves it behind for good ("leaking uprobe") if a SIGKILL is pending for that task. So none of our
//! threads may drop it: the out-of-memory killer, a cgroup's kill or a core dump may end us at any moment.
//!
//! A closer drops it by ending. Its address space is a copy of its own, which it has given up by then, and a task that
//! has begun to exit is sent no signal any more.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// One closer needs some 50 ms for a link, whatever others do at the same time. A closer is a copy of our page tables,
/// which count as memory of ours.
const MOST: usize = 16;

/// While a closer is made it has copies of all our descriptors. None of them may be the last one: nobody else may begin
/// to close any meanwhile.
static STARTING: Mutex<()> = Mutex::new(());

/// Close all of them, and wait until their probes are off.
pub fn close_all(descriptors: Vec<OwnedFd>) {
    if descriptors.is_empty() {
        return;
    }
    let share = descriptors.len().div_ceil(MOST);
    let starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(gate) = Gate::new() else { return }; // they are closed by this thread, which is better than not at all
    let closers: Vec<Closer> = descriptors.chunks(share).filter_map(|some| gate.start(some)).collect();
    let go = gate.wait_until_ready();
    drop(starting);
    drop(descriptors); // the closers have them: not the last reference, which takes no time
    drop(go);
    for closer in closers {
        closer.wait();
    }
}

/// Two pipes on which nobody writes: what tells is their end.
struct Gate {
    /// Ends when every closer has its own descriptors only.
    ready: (OwnedFd, OwnedFd),
    /// Ends when we have dropped ours, or have died.
    go: (OwnedFd, OwnedFd),
}

impl Gate {
    fn new() -> io::Result<Self> {
        Ok(Self { ready: pipe()?, go: pipe()? })
    }

    /// None where the host has no room for another process.
    fn start(&self, descriptors: &[OwnedFd]) -> Option<Closer> {
        let (ready, go) = (self.ready.1.as_raw_fd(), self.go.0.as_raw_fd());
        let mut kept: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).chain([ready, go]).collect();
        kept.sort_unstable();
        let limit = most_descriptors();
        let pid = without_signals(|| {
            // SAFETY: as fork() does it, but with no signal at its end: Python knows nothing of this child, which makes
            // raw system calls only.
            let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
            if pid == 0 {
                // SAFETY: this is the child.
                unsafe { end_at_go(&kept, limit, ready, go) }
            }
            pid
        });
        (pid > 0).then_some(Closer { pid: pid as libc::pid_t })
    }

    fn wait_until_ready(self) -> OwnedFd {
        let (ready, written) = self.ready;
        drop(written);
        let _ = File::from(ready).read_to_end(&mut Vec::new()); // empty
        self.go.1
    }
}

struct Closer {
    pid: libc::pid_t,
}

impl Closer {
    fn wait(self) {
        // SAFETY: a child of ours; no status is asked for.
        while unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

/// What a closer does: gives up all descriptors but those `kept` (in ascending order), says so, and exits when told to.
///
/// # Safety
/// Only in a child that shares nothing.
unsafe fn end_at_go(kept: &[RawFd], limit: RawFd, ready: RawFd, go: RawFd) -> ! {
    let mut first = 0;
    for &descriptor in kept {
        // SAFETY: they are copies, that nothing here uses.
        unsafe { close_between(first, descriptor) };
        first = descriptor + 1;
    }
    // SAFETY: as above; the byte is ours; the process has one thread.
    unsafe {
        close_between(first, limit.max(first));
        libc::syscall(libc::SYS_close, ready);
        let mut byte = 0_u8;
        libc::syscall(libc::SYS_read, go, &raw mut byte, 1);
        loop {
            libc::syscall(libc::SYS_exit_group, 0);
        }
    }
}

/// # Safety
/// Nothing may use these descriptors.
unsafe fn close_between(first: RawFd, end: RawFd) {
    // SAFETY: the caller says so.
    unsafe {
        if end > first && libc::syscall(libc::SYS_close_range, first, end - 1, 0) < 0 {
            for descriptor in first..end {
                libc::syscall(libc::SYS_close, descriptor); // before Linux 5.9
            }
        }
    }
}

/// No descriptor of ours has this number or a higher one.
fn most_descriptors() -> RawFd {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: there is room for the answer.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if told < 0 { RawFd::MAX } else { RawFd::try_from(limit.rlim_cur).unwrap_or(RawFd::MAX) }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = io::pipe()?;
    Ok((reader.into(), writer.into()))
}

/// Run it with all signals blocked, as a child then begins.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are ours; the calls cannot fail with these arguments.
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
    fn all_are_closed_when_it_returns() {
        let (readers, writers): (Vec<_>, Vec<_>) = (0..40).map(|_| pipe().expect("a pipe")).unzip();

        close_all(writers);

        for reader in readers {
            assert_eq!(File::from(reader).read(&mut [0]).expect("readable"), 0, "somebody still has it");
        }
    }

    #[test]
    fn others_keep_theirs() {
        let (reader, writer) = pipe().expect("a pipe");
        let (_, closed) = pipe().expect("a pipe");

        close_all(vec![closed]);

        File::from(writer).write_all(b"x").expect("writable");
        assert_eq!(File::from(reader).read(&mut [0]).expect("readable"), 1);
    }

    #[test]
    fn several_threads_may_close_at_once() {
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
