//! The snapshot source that stops threads, used only if the user requests it: each thread is stopped for
//! tens of microseconds, one at a time.
//!
//! `PTRACE_SEIZE` sends no signal and leaves nothing behind. If the tracer dies, the kernel detaches the
//! thread and lets it run. A tracer is a *thread*, not a process, so a separate thread makes the copies and
//! then exits.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};
use std::vec;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::task::{read_thread, thread_ids};
use super::{Consistency, RawThread, Source};
use crate::arch::host;
use crate::error::{Error, Kind, Result};
use crate::memory;

/// Maximum stack bytes copied while a thread is stopped.
const STACK_BYTES: usize = 64 * 1024;
/// Timeout for a thread to stop. A thread in an uninterruptible sleep would stop only when the sleep ends, so
/// it is not stopped, and its stack is not copied.
const STOP_DEADLINE: Duration = Duration::from_millis(20);

/// Number of stack bytes after which a call to `next` returns.
const PART_BYTES: usize = 16 << 20;

/// Copies the threads of one process, one at a time.
pub struct PtraceSource {
    pid: u32,
    remaining: vec::IntoIter<u32>,
}

impl PtraceSource {
    /// Create a source for process `pid`. It attaches to no thread before the first snapshot.
    pub fn new(pid: u32) -> Self {
        Self { pid, remaining: Vec::new().into_iter() }
    }

    fn on_own_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        thread::scope(|scope| {
            scope
                .spawn(work)
                .join()
                .unwrap_or_else(|_| Err(Error::new(Kind::Internal, "the tracing thread panicked")))
        })
    }
}

impl Source for PtraceSource {
    fn begin(&mut self, _stack_bytes: u64) -> Result<()> {
        self.remaining = thread_ids(self.pid)?.into_iter();
        Ok(())
    }

    fn next(&mut self) -> Result<Vec<RawThread>> {
        let pid = self.pid;
        let (mut threads, mut bytes) = (Vec::new(), 0);
        // A thread that does not stop in time is detached only when the tracing thread exits, so a new
        // tracing thread copies the remaining threads.
        while self.remaining.len() > 0 && bytes < PART_BYTES {
            Self::on_own_thread(|| {
                for tid in self.remaining.by_ref() {
                    let (thread, late) = stop_and_copy(pid, tid)?;
                    bytes += thread.as_ref().map_or(0, |thread| thread.stack.len());
                    threads.extend(thread);
                    if late || bytes >= PART_BYTES {
                        break;
                    }
                }
                Ok(())
            })?;
        }
        Ok(threads)
    }

    fn copy_one(&mut self, tid: u32) -> Result<Option<RawThread>> {
        let pid = self.pid;
        Self::on_own_thread(move || Ok(stop_and_copy(pid, tid)?.0))
    }

    fn read_state(&mut self, tid: u32) -> Result<Option<RawThread>> {
        Ok(read_thread(self.pid, tid))
    }

    fn read_states(&mut self) -> Result<Vec<RawThread>> {
        Ok(thread_ids(self.pid)?.into_iter().filter_map(|tid| read_thread(self.pid, tid)).collect())
    }

    fn name(&self) -> &'static str {
        "ptrace"
    }

    fn stops_threads(&self) -> bool {
        true
    }
}

/// Stop and copy a thread. Return the copy (None if the thread has exited), and true if the thread did not
/// stop in time and is therefore still seized.
fn stop_and_copy(pid: u32, tid: u32) -> Result<(Option<RawThread>, bool)> {
    let Some(mut thread) = read_thread(pid, tid) else {
        return Ok((None, false));
    };
    if matches!(thread.state, 'Z' | 'X') {
        return Ok((None, false));
    }
    if thread.state == 'D' {
        // The thread would stop only at the end of its system call, possibly after the deadline, so do not
        // seize it.
        thread.consistency = Consistency::Running;
        return Ok((Some(thread), false));
    }
    let Some(_stopped) = StoppedThread::seize(pid, tid)? else {
        let late = read_thread(pid, tid).is_some_and(|now| !matches!(now.state, 'Z' | 'X'));
        return Ok((Some(thread).filter(|_| late), late));
    };
    if read_thread(pid, tid).is_none() {
        return Ok((None, false)); // the thread exited before it was seized, and its id was reused by another process
    }
    let Ok(registers) = ptrace::getregs(Pid::from_raw(tid as i32)) else {
        return Ok((None, false));
    };
    let code = |address| memory::read_some(pid, address, 4).ok()?.first_chunk().copied();
    (thread.registers, thread.syscall, thread.arg0) = host::of_stopped(&registers, code);
    thread.stack = memory::read_some(pid, thread.registers.sp, STACK_BYTES).unwrap_or_default().into();
    thread.consistency = Consistency::Consistent;
    Ok((Some(thread), false))
}

/// A thread that this process has stopped; detached when dropped.
struct StoppedThread {
    tid: Pid,
    /// A signal whose delivery was pending when the thread stopped. It must be delivered on detaching.
    signal: Option<Signal>,
}

impl StoppedThread {
    /// Seize and stop a thread. Return None if it has exited or did not stop in time.
    fn seize(pid: u32, tid: u32) -> Result<Option<Self>> {
        let doing = || format!("attaching to thread {tid} of process {pid}");
        let tid = Pid::from_raw(tid as i32);
        match ptrace::seize(tid, ptrace::Options::empty()) {
            Ok(()) => {}
            Err(Errno::ESRCH) => return Ok(None),
            Err(Errno::EPERM) if is_exiting(pid, tid) => return Ok(None), // exiting threads also cause EPERM
            Err(Errno::EPERM) if tracer(pid).is_some_and(|tracer| tracer != std::process::id()) => {
                let detail = format!("it is traced by process {}", tracer(pid).unwrap_or_default());
                return Err(Error::new(Kind::Traced, detail));
            }
            Err(error) => return Err(Error::from_os(&io::Error::from(error), &doing(), Kind::Internal)),
        }
        if ptrace::interrupt(tid).is_err() {
            return Ok(None);
        }
        let deadline = Instant::now() + STOP_DEADLINE;
        loop {
            match waitpid(tid, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::StillAlive) if Instant::now() < deadline => {
                    thread::sleep(Duration::from_micros(20));
                }
                Ok(WaitStatus::PtraceEvent(..)) => return Ok(Some(Self { tid, signal: None })),
                Ok(WaitStatus::Stopped(_, signal)) => return Ok(Some(Self { tid, signal: Some(signal) })),
                // The thread has exited or did not stop in time; the kernel detaches it when the tracing
                // thread exits.
                _ => return Ok(None),
            }
        }
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // This fails with ESRCH if the thread has been killed; there is then nothing to detach.
        let _ = ptrace::detach(self.tid, self.signal);
    }
}

fn is_exiting(pid: u32, tid: Pid) -> bool {
    read_thread(pid, tid.as_raw() as u32).is_none_or(|now| matches!(now.state, 'Z' | 'X'))
}

/// Return the pid of the tracer of the process, if any.
fn tracer(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    line.trim().parse().ok().filter(|pid| *pid != 0)
}
