//! Copies the registers and stacks of all threads of a process. The BPF task iterator and reads of /proc stop
//! no threads; ptrace stops one thread at a time.

pub mod bpf;
pub mod iterator_link;
pub mod loader;
pub mod namespaces;
pub mod perf;
pub mod plausible;
pub mod procfs;
pub mod ptrace;
mod record;
mod result;
mod rotation;
pub mod schedstat;
pub(crate) mod task;

use std::ops::{Deref, Range};
use std::sync::Arc;

pub use result::{Snapshot, Thread, Trust};

use crate::error::Result;

/// The registers that unwinding starts from. The values are addresses in the observed process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// The instruction pointer.
    pub ip: u64,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer, or None if the source cannot read it.
    pub bp: Option<u64>,
    /// The link register, or None if the source cannot read it or the architecture has none.
    pub lr: Option<u64>,
}

/// A slice of a buffer that holds the stacks of many threads. Sharing the buffer avoids a second copy of
/// these stacks, which take 14 MB for 1,000 threads.
#[derive(Debug, Clone, Default)]
pub struct Bytes {
    buffer: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Bytes {
    /// Create the slice `range` of `buffer`, or an empty one if it is out of bounds.
    pub fn new(buffer: Arc<Vec<u8>>, range: Range<usize>) -> Self {
        let range = if range.end <= buffer.len() { range } else { 0..0 };
        Self { buffer, range }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { buffer: Arc::new(bytes), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}

/// The consistency of a copy, which depends on whether the thread ran while it was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consistency {
    /// The thread did not run: registers and stack are consistent.
    Consistent,
    /// The thread was on a CPU: the registers are from its last kernel entry.
    Running,
    /// The thread ran during the copy: registers and stack may be inconsistent.
    Torn,
}

/// The copy of one thread.
#[derive(Debug, Clone)]
pub struct RawThread {
    /// The thread id in the pid namespace of Innoscope.
    pub tid: u32,
    /// The thread id in the process's own pid namespace.
    pub ns_tid: u32,
    /// The state letter, as in /proc/PID/stat.
    pub state: char,
    /// The thread name.
    pub comm: String,
    /// The consistency of this copy.
    pub consistency: Consistency,
    /// The number of times that the thread was switched out or scheduled on a CPU, depending on the source. It
    /// changes whenever the thread runs.
    pub switches: u64,
    /// The `run_count` of [`schedstat::Schedstat`], valid if the thread was off the CPU; 0 with ptrace.
    pub ran: u64,
    /// The user registers.
    pub registers: Registers,
    /// The number of the thread's current system call, or -1.
    pub syscall: i32,
    /// The first argument of that system call.
    pub arg0: u64,
    /// The stack bytes from the stack pointer upward.
    pub stack: Bytes,
    /// The kernel's return addresses, innermost first, if requested.
    pub kernel: Vec<u64>,
    /// The return addresses that return probes replaced on the stack, as (address of the slot, original
    /// value), innermost first.
    pub returns: Vec<(u64, u64)>,
    /// True if the thread has not run since its previous copy, according to `switches` and its start time.
    /// None of its properties has changed, and `stack`, `kernel` and `returns` are empty.
    pub unchanged: bool,
    /// True if the snapshot's budget was not enough for this thread: `stack` is only the innermost part, or
    /// empty.
    pub shallow: bool,
    /// The number of stack bytes that are still to be copied, because the source's BPF program could not copy
    /// them.
    pub stack_wanted: usize,
}

impl RawThread {
    /// Return the thread without its stack bytes, so that it does not keep the shared buffer alive.
    #[must_use]
    pub fn without_stack(self) -> Self {
        Self { stack: Bytes::default(), ..self }
    }

    /// Set `consistency` by comparing this copy with `now`, the thread's state after the copy (None if the
    /// thread has exited).
    fn compare(&mut self, now: Option<&Self>) {
        match now {
            Some(now) if now.consistency == Consistency::Running => self.consistency = Consistency::Running,
            Some(now) if now.switches == self.switches => {}
            _ => self.consistency = Consistency::Torn,
        }
    }
}

/// A method of copying threads.
pub trait Source: Send {
    /// Start a snapshot of all threads. In total, the source copies about `stack_bytes` bytes of their
    /// stacks. Threads beyond that limit are `shallow`; each snapshot chooses different ones. ptrace has no
    /// such limit.
    fn begin(&mut self, stack_bytes: u64) -> Result<()>;

    /// Return the next part of the snapshot's threads, small enough to be held in memory, or an empty list at
    /// the end. Threads that have not run since the last snapshot are marked `unchanged` if the source can
    /// detect this.
    fn next(&mut self) -> Result<Vec<RawThread>>;

    /// Copy all threads of the process into one list, which is empty if the process has exited.
    fn copy_all(&mut self) -> Result<Vec<RawThread>> {
        self.begin(u64::MAX)?;
        let mut threads = Vec::new();
        loop {
            let part = self.next()?;
            if part.is_empty() {
                return Ok(threads);
            }
            threads.extend(part);
        }
    }

    /// Return messages about the limitations of the last snapshot.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Copy one thread, always with its stack; None if it has exited.
    fn copy_one(&mut self, tid: u32) -> Result<Option<RawThread>>;

    /// Read the current state of one thread without its stack, for `consistency` and `switches`.
    fn read_state(&mut self, tid: u32) -> Result<Option<RawThread>>;

    /// Read the current state of all threads without their stacks.
    fn read_states(&mut self) -> Result<Vec<RawThread>>;

    /// Return the name of the method: "bpf", "bpf-nosleep", "procfs" or "ptrace".
    fn name(&self) -> &'static str;

    /// Return true if a thread is stopped while it is copied.
    fn stops_threads(&self) -> bool {
        false
    }

    /// Return data that speeds up the next start on the same kernel ([`loader::load`]), or None if there is
    /// nothing new to cache.
    fn relocated_program(&self) -> Option<&[u8]> {
        None
    }
}
