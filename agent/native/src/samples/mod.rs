//! Counts the stacks that BPF programs or perf events capture: reads them from a ring buffer, unwinds them and
//! resolves their symbols.
//!
//! The programs of the profiles are in `programs`, and profiles without BPF in `events` and `switch_events`. Any
//! other program that sends the records defined in probes/include/sample.h works as well.

mod event_set;
pub mod events;
pub mod programs;
pub mod record;
mod ring;
pub mod sampled_statements;
mod sampling_period;
mod stacks;
pub mod switch_events;
mod switch_records;
mod switches;
pub mod waits;
mod waits_by_perf;

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::digest::Normalized;
use crate::error::{Error, Kind, Result};
use crate::modules::Modules;
use crate::names::Frame;
use crate::pacing::Pacer;
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::{Consistency, RawThread, Registers, Source, Trust};
use crate::symbols::DebugSearch;
use crate::unwind::{End, Unwinder};
use events::PerfOnCpu;
use record::{Account, Capture, Record, parse};
use ring::Ring;
use sampled_statements::{SampledStatements, Statement};
use stacks::Stacks;
use waits::Waits;

/// Maximum number of records read at a time. Without a limit, reading would never end if a busy server filled
/// the ring at the same rate.
const MAX_RECORDS: usize = 50_000;
/// Minimum time between two reads of the process's maps, which are read again if a stack has an address in
/// unknown code.
const MAPS_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of distinct counts. Beyond that, new samples are attributed to thread 0.
const MAX_COUNTS: usize = 200_000;

/// The stack and the system call of a thread when it was sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The stack's id, for `Samples::frames`.
    pub stack: u32,
    /// The reliability of the stack.
    pub trust: Trust,
    /// The number of the thread's system call, or -1.
    pub syscall: i32,
    /// The file descriptor that is the call's first argument, for the requested system calls; otherwise -1.
    pub file: i32,
}

/// The number of samples and their total weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of records.
    pub count: u64,
    /// Sum of the records' weights.
    pub weight: u64,
}

/// Options for resolving symbols.
#[derive(Debug, Clone, Default)]
pub struct SymbolOptions {
    /// The places to search for debug files.
    pub search: DebugSearch,
    /// Include inlined calls.
    pub inlines: bool,
    /// Include the kernel's functions.
    pub kernel: bool,
    /// System calls whose first argument, a file descriptor, is recorded.
    pub file_calls: FxHashSet<i32>,
}

/// The captured stacks of one process, counted by kind, thread and place.
pub struct Samples {
    ring: Option<Ring>,
    aggregator: Aggregator,
}

/// The state that each record updates.
struct Aggregator {
    modules: Modules,
    maps_read: Instant,
    unwinder: Unwinder,
    stacks: Stacks,
    file_calls: FxHashSet<i32>,
    counts: FxHashMap<(u32, u32, Place), Count>,
    comms: FxHashMap<u32, String>,
    waits: Waits,
    /// The sampled statements of a latency profile.
    statements: Option<SampledStatements>,
    /// Number of records read from the BPF ring buffer, and of samples read from perf events.
    records: u64,
    bytes: u64,
}

impl Samples {
    /// Read the samples of process `pid` from the BPF ring buffer with this descriptor, which may be closed
    /// afterward. Without a ring buffer, only perf events supply samples.
    ///
    /// Errors: `Gone`, `Rights`, or `Internal` if the descriptor is not a ring buffer.
    pub fn new(pid: u32, ring: Option<RawFd>, symbol_options: SymbolOptions) -> Result<Self> {
        let SymbolOptions { search, inlines, kernel, file_calls } = symbol_options;
        let ring = ring.map(Ring::open).transpose();
        let ring =
            ring.map_err(|error| Error::new(Kind::Internal, format!("opening the ring buffer: {error}")))?;
        let modules = Modules::new(pid, search)?;
        if modules.all().is_empty() {
            let detail = format!("process {pid} has no code mapped: it is exiting, or it is a kernel thread");
            return Err(Error::new(Kind::Gone, detail));
        }
        let aggregator = Aggregator {
            unwinder: Unwinder::new(&modules),
            modules,
            maps_read: Instant::now(),
            stacks: Stacks::new(inlines, kernel),
            file_calls,
            counts: FxHashMap::default(),
            comms: FxHashMap::default(),
            waits: Waits::default(),
            statements: None,
            records: 0,
            bytes: 0,
        };
        Ok(Self { ring, aggregator })
    }

    /// Process the records in the BPF ring buffer and return their number.
    pub fn read(&mut self) -> io::Result<usize> {
        let mut pacer = Pacer::start();
        let aggregator = &mut self.aggregator;
        aggregator.unwinder.refill();
        let Some(ring) = &mut self.ring else { return Ok(0) };
        ring.read(MAX_RECORDS, &mut |bytes| {
            aggregator.add(bytes);
            pacer.yield_if_due();
        })
    }

    /// Process the samples of perf events and return their number.
    pub fn read_events(&mut self, events: &mut PerfOnCpu) -> usize {
        let mut pacer = Pacer::start();
        let aggregator = &mut self.aggregator;
        aggregator.unwinder.refill();
        events.read(MAX_RECORDS, &mut |capture| {
            aggregator.records += 1;
            aggregator.count(capture);
            pacer.yield_if_due();
        })
    }

    /// Start collecting sampled statements in `statements`.
    pub fn collect_statements(&mut self, statements: SampledStatements) {
        self.aggregator.statements = Some(statements);
    }

    /// Return the sampled statements that have ended since the last call.
    pub fn take_statements(&mut self) -> Vec<Statement> {
        self.aggregator.statements.as_mut().map(SampledStatements::take).unwrap_or_default()
    }

    /// Return the digest of a prepared statement, identified by its connection id and statement id.
    pub fn prepared_digest(&self, key: (u32, u32)) -> Option<Arc<Normalized>> {
        self.aggregator.statements.as_ref()?.prepared(key)
    }

    /// Return the number of sampled statements that have not ended, and of those that were dropped.
    pub fn missing_statements(&self) -> (usize, u64) {
        self.aggregator.statements.as_ref().map_or((0, 0), |found| (found.open(), found.dropped))
    }

    /// Return the counts so far by (kind, thread id, place).
    pub fn counts(&self) -> &FxHashMap<(u32, u32, Place), Count> {
        &self.aggregator.counts
    }

    /// Return the frames of a stack, innermost first.
    pub fn frames(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        self.aggregator.stacks.frames(stack)
    }

    /// Return a message for each limit on stacks and names that was reached.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        self.aggregator.stacks.problems()
    }

    /// Return the modules as of the last read of the maps.
    pub fn modules(&self) -> &Modules {
        &self.aggregator.modules
    }

    /// Return the names of the sampled threads.
    pub fn comms(&self) -> &FxHashMap<u32, String> {
        &self.aggregator.comms
    }

    /// Return the number of records read from the BPF ring buffer and of samples read from perf events, and the
    /// bytes of stack in them.
    pub fn taken(&self) -> (u64, u64) {
        (self.aggregator.records, self.aggregator.bytes)
    }

    /// Take a snapshot and assign its stacks to the waits that are in progress; see `Waits`.
    pub fn add_snapshot(&mut self, source: &mut BpfSource) -> Result<()> {
        let threads = source.copy_all()?;
        self.read().map_err(|error| Error::from_os(&error, "reading the ring buffer", Kind::Internal))?;
        self.aggregator.add_current_waits(&threads);
        Ok(())
    }

    /// Complete a profile of waits from the accounts of all threads; `ended` is the time at which the profile
    /// ended. A snapshot by `source` supplies stacks that are still unknown.
    pub fn settle(
        &mut self,
        source: Option<&mut BpfSource>,
        accounts: &[(u32, Account)],
        ended: u64,
    ) -> Result<&Waits> {
        let mut threads = source.and_then(|source| source.copy_all().ok()).unwrap_or_default();
        self.read().map_err(|error| Error::from_os(&error, "reading the ring buffer", Kind::Internal))?;
        let aggregator = &mut self.aggregator;
        for thread in &threads {
            aggregator.comms.entry(thread.tid).or_insert_with(|| thread.comm.clone());
        }
        // A wait that began after the end of the profile would replace the wait that was in progress at the end.
        let at_end: FxHashMap<u32, u64> =
            accounts.iter().map(|(tid, account)| (*tid, account.switches)).collect();
        threads.retain(|thread| at_end.get(&thread.tid) == Some(&thread.switches));
        aggregator.add_current_waits(&threads);
        for (tid, account) in accounts {
            aggregator.settle(*tid, account, ended);
        }
        Ok(&aggregator.waits)
    }
}

impl Aggregator {
    fn add(&mut self, bytes: &[u8]) {
        self.records += 1;
        match parse(bytes) {
            Some(Record::Sample(capture)) => self.count(capture),
            Some(Record::WaitBegins(mut capture)) => {
                self.bytes += capture.stack.len() as u64;
                let scheduler = self.stacks.in_scheduler(&capture.kernel);
                capture.kernel.drain(..scheduler);
                let place = self.place(&capture, Trust::Exact);
                self.waits.begins(capture.tid, place, capture.weight);
                self.comms.insert(capture.tid, capture.comm);
            }
            Some(Record::WaitEnds(tid, end)) => self.waits.ends(tid, end),
            Some(Record::ThreadEnds(tid, at, account, comm)) => {
                self.comms.remove(&tid);
                self.waits.settle(tid, comm, &account, at);
                if let Some(statements) = &mut self.statements {
                    statements.thread_ends(tid);
                }
            }
            Some(Record::StatementBegins(tid, begin)) => {
                if let Some(statements) = &mut self.statements {
                    statements.begins(tid, begin, &mut self.waits);
                }
            }
            Some(Record::StatementText(tid, text)) => {
                if let Some(statements) = &mut self.statements {
                    statements.text(tid, text);
                }
            }
            Some(Record::StatementEnds(tid, end)) => {
                if let Some(statements) = &mut self.statements {
                    statements.ends(tid, end, &mut self.waits);
                }
            }
            None => {}
        }
    }

    fn count(&mut self, capture: Capture<'_>) {
        self.bytes += capture.stack.len() as u64;
        let place = self.place(&capture, Trust::OnCpu);
        let tid = if self.counts.len() < MAX_COUNTS { capture.tid } else { 0 };
        let count = self.counts.entry((capture.kind, tid, place)).or_default();
        count.count += 1;
        count.weight = count.weight.wrapping_add(capture.weight);
        if !capture.comm.is_empty() {
            self.comms.insert(tid, capture.comm);
        }
    }

    fn settle(&mut self, tid: u32, account: &Account, ended: u64) {
        let comm = self.comms.get(&tid).cloned().unwrap_or_default();
        self.waits.settle(tid, comm, account, ended);
    }

    /// Record the current waits of these threads, except those that are already known.
    fn add_current_waits(&mut self, threads: &[RawThread]) {
        self.unwinder.refill();
        let mut pacer = Pacer::start();
        for thread in threads.iter().filter(|thread| thread.consistency == Consistency::Consistent) {
            if self.waits.is_known(thread.tid, thread.switches) {
                continue;
            }
            pacer.yield_if_due();
            let file = self.file(thread.syscall, thread.arg0);
            let (stack, trust) =
                self.walk(thread.registers, &thread.stack, &thread.kernel, &thread.returns, Trust::Exact);
            let place = Place { stack, trust, syscall: thread.syscall, file };
            self.waits.begins(thread.tid, place, thread.switches);
            self.comms.insert(thread.tid, thread.comm.clone());
        }
    }

    fn place(&mut self, capture: &Capture<'_>, if_complete: Trust) -> Place {
        let Capture { registers, stack, kernel, returns, syscall, arg0, .. } = capture;
        let (stack, trust) = self.walk(*registers, stack, kernel, returns, if_complete);
        Place { stack, trust, syscall: *syscall, file: self.file(*syscall, *arg0) }
    }

    fn file(&self, syscall: i32, arg0: u64) -> i32 {
        if self.file_calls.contains(&syscall) { arg0 as i32 } else { -1 }
    }

    fn walk(
        &mut self,
        registers: Registers,
        stack: &[u8],
        kernel: &[u64],
        returns: &[(u64, u64)],
        if_complete: Trust,
    ) -> (u32, Trust) {
        let mut walk = self.unwinder.walk(&self.modules, registers, stack, returns);
        // The code, for instance a plugin, may have been mapped since the maps were read.
        if walk.end == End::OutsideModules && self.maps_changed() {
            walk = self.unwinder.walk(&self.modules, registers, stack, returns);
        }
        let trust = match walk.end {
            End::Root if walk.inferred => Trust::Inferred,
            End::Root => if_complete,
            End::BeyondCopy => Trust::Truncated,
            End::Lost | End::OutsideModules | End::Budget | End::NoFramePointer | End::NoLinkRegister => {
                Trust::Incomplete
            }
        };
        let stack = self.stacks.number(&self.modules, &walk.addresses, kernel);
        (stack, if stack == stacks::DROPPED { Trust::Truncated } else { trust })
    }

    /// Read the maps again, and return true if they changed. Return false, and keep the modules, if the maps
    /// were read a short time ago or the process has exited.
    fn maps_changed(&mut self) -> bool {
        if self.maps_read.elapsed() < MAPS_INTERVAL {
            return false;
        }
        self.maps_read = Instant::now();
        if !self.modules.refresh().unwrap_or(false) {
            return false;
        }
        self.unwinder = self.unwinder.renewed(&self.modules);
        self.stacks.clear_addresses();
        true
    }
}
