//! What one look at a process tells, and how far it can be believed.

use std::time::Duration;

use crate::snapshot::RawThread;

/// How far a thread's stack can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// It did not run while it was copied.
    Exact,
    /// It was running: sampled afresh.
    OnCpu,
    /// It was running and no sample came: as of its last kernel entry.
    Stale,
    /// It ran while it was copied, each time.
    Torn,
    /// Deeper than what could be copied.
    Truncated,
    /// The walk did not reach a root.
    Incomplete,
}

impl Trust {
    /// The name in the JSON schema.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::OnCpu => "on_cpu",
            Self::Stale => "stale",
            Self::Torn => "torn",
            Self::Truncated => "truncated",
            Self::Incomplete => "incomplete",
        }
    }
}

/// One thread of a look.
#[derive(Debug, Clone)]
pub struct Thread {
    /// As copied; its stack bytes are dropped.
    pub raw: RawThread,
    /// How far to believe it.
    pub trust: Trust,
    /// Which stack, by `Process::frames`.
    pub stack: u32,
}

/// What a look saw and what it took.
#[derive(Debug, Default)]
pub struct Look {
    /// All threads.
    pub threads: Vec<Thread>,
    /// From the first thread's copy to the end of the last one's.
    pub copy: Duration,
    /// Unwinding.
    pub unwind: Duration,
    /// Naming.
    pub symbolise: Duration,
    /// Threads copied again.
    pub retried: usize,
    /// Threads sampled because they were running.
    pub sampled: usize,
    /// Threads whose stack was cut because the budget of the snapshot was spent.
    pub shallow: usize,
    /// What was degraded, in words.
    pub notes: Vec<String>,
}
