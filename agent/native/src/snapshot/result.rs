//! The result of one snapshot of a process, with the reliability of each stack.

use std::time::Duration;

use super::RawThread;

/// The reliability of a thread's stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// The thread did not run while it was copied.
    Exact,
    /// The thread did not run while it was copied, but its frame pointer or link register was unknown and had
    /// to be inferred.
    Inferred,
    /// The thread was running, and a perf event sampled it.
    OnCpu,
    /// The thread was running and no sample arrived: the stack dates from its last kernel entry, or is empty
    /// if the source cannot read it.
    Stale,
    /// The thread ran during every attempt to copy it.
    Torn,
    /// The stack is larger than the part that was copied.
    Truncated,
    /// Unwinding stopped before it reached the outermost frame.
    Incomplete,
}

impl Trust {
    /// Return the name used in the JSON schema.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Inferred => "inferred",
            Self::OnCpu => "on_cpu",
            Self::Stale => "stale",
            Self::Torn => "torn",
            Self::Truncated => "truncated",
            Self::Incomplete => "incomplete",
        }
    }
}

/// One thread of a snapshot.
#[derive(Debug, Clone)]
pub struct Thread {
    /// The thread as copied, without its stack bytes.
    pub raw: RawThread,
    /// The reliability of the stack.
    pub trust: Trust,
    /// The stack's id, for `Process::frames`.
    pub stack: u32,
}

/// One snapshot: its threads and its cost.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// All threads.
    pub threads: Vec<Thread>,
    /// Time from the start of the first copy to the end of the last one, retries included.
    pub copy: Duration,
    /// Time spent on unwinding.
    pub unwind: Duration,
    /// Time spent on resolving symbols.
    pub symbolize: Duration,
    /// Number of threads that had not run since the last snapshot, so their stacks were not copied.
    pub unchanged: usize,
    /// Number of threads that were copied again.
    pub retried: usize,
    /// Number of running threads that were sampled by perf events.
    pub sampled: usize,
    /// Number of threads whose stack was truncated because the snapshot's budget was exhausted.
    pub shallow: usize,
    /// Messages about the limitations of this snapshot.
    pub notes: Vec<String>,
}
