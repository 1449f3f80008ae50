//! Copies of the registers and stacks of all threads of a process, by one of two sources: the BPF task
//! iterator, which stops nothing, and ptrace, which holds one thread at a time.

pub mod bpf;
pub mod fitted;
pub mod perf;
pub mod ptrace;
mod record;
mod turns;

use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::error::Result;

/// The registers an unwinder starts from. Addresses of the looked-at process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer.
    pub sp: u64,
    /// Frame pointer.
    pub bp: u64,
}

/// A slice of a buffer that many threads' stacks share: 1,000 threads make some 14 MB, copied once.
#[derive(Debug, Clone, Default)]
pub struct Bytes {
    buffer: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Bytes {
    /// The part `range` of `buffer`; empty where that lies outside.
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

/// Did the thread run while it was copied?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// It did not: registers and stack belong together.
    Still,
    /// It was on a CPU: the saved registers are those of its last kernel entry.
    Running,
    /// It ran in between: registers and stack may not belong together.
    Moved,
}

/// One thread as copied.
#[derive(Debug, Clone)]
pub struct RawThread {
    /// Thread id as we see it.
    pub tid: u32,
    /// Thread id inside the process's own pid namespace.
    pub ns_tid: u32,
    /// Letter of the state, as in /proc/PID/stat.
    pub state: char,
    /// Thread name.
    pub comm: String,
    /// Whether the copy is consistent.
    pub motion: Motion,
    /// Context switches so far (voluntary and not): moves when the thread runs.
    pub switches: u64,
    /// User registers.
    pub registers: Registers,
    /// The system call it is in, or -1.
    pub syscall: i32,
    /// First argument of that call.
    pub arg0: u64,
    /// Stack bytes from the stack pointer upwards.
    pub stack: Bytes,
    /// Kernel return addresses, innermost first, where asked for.
    pub kernel: Vec<u64>,
    /// Return addresses that return probes replaced on the stack: (address of the slot, what was in it),
    /// innermost first.
    pub returns: Vec<(u64, u64)>,
    /// It has not run since it was copied before, as `switches` and the time of its start say: all is as it was
    /// then, and `stack`, `kernel` and `returns` are empty.
    pub unchanged: bool,
    /// The budget of the snapshot was spent: `stack` is a short piece, or empty.
    pub shallow: bool,
}

impl RawThread {
    /// The thread without its stack bytes, so that it does not hold the buffer that they are in.
    #[must_use]
    pub fn without_stack(self) -> Self {
        Self { stack: Bytes::default(), ..self }
    }
}

/// A way to copy threads.
pub trait Source: Send {
    /// Starts a snapshot of all threads. The source copies `stack_bytes` of their stacks, or a little more; beyond
    /// that, threads are `shallow`, others of them at each snapshot. ptrace has no such limit.
    fn begin(&mut self, stack_bytes: u64) -> Result<()>;

    /// The next threads of the snapshot, a part small enough to hold in memory; those that have not run since the
    /// last snapshot are marked `unchanged` where the source knows. Empty at the end.
    fn next(&mut self) -> Result<Vec<RawThread>>;

    /// All threads of the process in one list. Empty when the process is gone.
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

    /// What was degraded in the last snapshot, in words.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// One thread again, with its stack in any case, or None when it ended.
    fn copy_one(&mut self, tid: u32) -> Result<Option<RawThread>>;

    /// One thread without its stack: for what `motion` and `switches` say now.
    fn glance(&mut self, tid: u32) -> Result<Option<RawThread>>;

    /// "bpf" or "ptrace".
    fn name(&self) -> &'static str;

    /// What makes the next start on this kernel cheaper ([`fitted::load`]), where there is something new to keep.
    fn fitted(&self) -> Option<&[u8]> {
        None
    }
}
