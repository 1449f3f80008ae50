//! Takes snapshots of all threads of a process: copies and unwinds the stacks, retries threads that ran
//! during the copy, and resolves symbols.

mod method;
mod retry;

use std::sync::Arc;
use std::time::Instant;

pub use method::Method;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Kind, Result};
use crate::modules::Modules;
use crate::names::{Addresses, Frame, StackNames};
use crate::pacing::Pacer;
use crate::snapshot::schedstat::RunCounts;
use crate::snapshot::{Consistency, RawThread, Snapshot, Source, Thread, Trust};
use crate::symbols::{DebugSearch, limits};
use crate::unwind::{End, Unwinder, Walk};

/// Maximum number of threads that are copied again because they ran during the copy. The rest keep their first copy.
const MAX_RETRIED: usize = 1_000;
/// Number of spare stacks in the cache. To limit memory, the cache is cleared when it holds more than this number
/// plus twice the distinct stacks of the last snapshot, or more than half of the frames that it may hold, or if stacks
/// or names are missing. Threads on a CPU have new stacks in each snapshot.
const SPARE_STACKS: usize = 64;

/// A process to take snapshots of.
pub struct Process {
    pid: u32,
    source: Box<dyn Source>,
    modules: Modules,
    unwinder: Unwinder,
    names: StackNames,
    /// Number of distinct stacks in the last snapshot.
    distinct_stacks: usize,
    /// The complete stacks of threads that were off the CPU in the last snapshot, by thread id.
    cached_stacks: FxHashMap<u32, CachedStack>,
    /// Maximum size of all stacks that one snapshot copies, in bytes. For deep stacks, up to as many bytes
    /// again are read.
    max_bytes: u64,
    /// Bytes of deep stacks that this snapshot may still read.
    deep_bytes_left: u64,
    run_counts: RunCounts,
}

/// The unwound stack of a thread that was off the CPU. It is valid until the thread runs again.
struct CachedStack {
    switches: u64,
    ran: u64,
    trust: Trust,
    stack: u32,
    addresses: Arc<Addresses>,
}

/// A thread whose stack is unwound, but whose symbols are not resolved yet.
struct UnwoundThread {
    thread: RawThread,
    trust: Trust,
    stack: Stack,
}

enum Stack {
    /// Unwound in this snapshot.
    Unwound(Walk),
    /// The same stack as in the last snapshot. Its frames may have been dropped from the cache since.
    Cached(u32, Arc<Addresses>),
}

impl UnwoundThread {
    fn new(thread: RawThread, walk: Walk, trust: Trust) -> Self {
        Self { thread: thread.without_stack(), trust, stack: Stack::Unwound(walk) }
    }

    /// Return true if the next snapshot would return the same stack for an unchanged thread. Return false if
    /// the walk ran out of steps, or if it reached an address outside all modules; the next snapshot may know
    /// the module of that address.
    fn is_final(&self) -> bool {
        !matches!(&self.stack, Stack::Unwound(walk) if matches!(walk.end, End::OutsideModules | End::Budget))
    }

    /// Return true if the walk reached an address outside all modules.
    fn left_modules(&self) -> bool {
        matches!(&self.stack, Stack::Unwound(walk) if walk.end == End::OutsideModules)
    }
}

impl Process {
    /// Open the process's modules and prepare the snapshot method. `cached_program` is an earlier result of
    /// [`Process::relocated_program`] on the same kernel.
    ///
    /// Errors: `Gone`, `Rights`, `Arch`, `Bpf`, `Procfs`, `Internal`.
    pub fn new(
        pid: u32,
        method: Method,
        search: DebugSearch,
        inlines: bool,
        kernel: bool,
        cached_program: Option<&[u8]>,
    ) -> Result<Self> {
        let modules = Modules::new(pid, search)?;
        if modules.all().is_empty() {
            return Err(Error::new(
                Kind::Gone,
                format!("process {pid} has no code mapped: it is exiting, or it is a kernel thread"),
            ));
        }
        refuse_other_architecture(pid, &modules)?;
        let source = method::open_source(pid, method, kernel, cached_program)?;
        let unwinder = Unwinder::new(&modules);
        Ok(Self {
            pid,
            source,
            modules,
            unwinder,
            names: StackNames::new(inlines, kernel),
            distinct_stacks: 0,
            cached_stacks: FxHashMap::default(),
            max_bytes: u64::MAX,
            deep_bytes_left: u64::MAX,
            run_counts: RunCounts::new(pid),
        })
    }

    /// Return the name of the method: "bpf", "bpf-nosleep", "procfs" or "ptrace".
    pub fn method(&self) -> &'static str {
        self.source.name()
    }

    /// Return the relocated program, to be passed to [`Process::new`] at the next start on the same kernel
    /// build; None if there is nothing new to cache.
    pub fn relocated_program(&self) -> Option<&[u8]> {
        self.source.relocated_program()
    }

    /// Return the modules as of the last snapshot.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// Return the frames of a stack of the last snapshot.
    pub fn frames(&self, stack: u32) -> Option<&Arc<Vec<Frame>>> {
        self.names.get(stack)
    }

    /// Return the number of frames of the cached stacks.
    pub fn cached_frames(&self) -> usize {
        self.names.frames()
    }

    /// Limit the bytes of stacks that a snapshot copies, and apply the same limit separately to the bytes
    /// that it reads for deep stacks.
    pub fn limit(&mut self, max_bytes: u64) {
        self.max_bytes = max_bytes;
    }

    /// Copy, unwind and symbolize the stacks of all threads.
    ///
    /// Errors: `Gone` if the process exited before the copy; otherwise the error of the copy method (bpf,
    /// procfs, ptrace).
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        if self.names.len() > 2 * self.distinct_stacks + SPARE_STACKS
            || self.names.frames() > limits::STACK_FRAMES / 2
            || self.names.is_incomplete()
        {
            self.names.clear_stacks();
        }
        self.unwinder.refill();
        let mut snapshot = Snapshot::default();
        let (mut done, mut moved) = (Vec::new(), Vec::new());
        let mut previous = std::mem::take(&mut self.cached_stacks);
        let mut refreshed = false;
        self.deep_bytes_left = self.max_bytes;
        let started = Instant::now();
        self.source.begin(self.max_bytes)?;
        // Process the copy in parts, so that the stacks of 20,000 threads are never in memory at the same
        // time.
        loop {
            let part = self.source.next()?;
            if part.is_empty() {
                break;
            }
            snapshot.copy = started.elapsed();
            self.walk_part(part, &mut previous, &mut done, &mut moved, &mut refreshed)?;
        }
        drop(previous);
        if done.is_empty() && moved.is_empty() {
            return Err(Error::new(Kind::Gone, format!("process {} ended", self.pid)));
        }
        snapshot.unwind = started.elapsed().saturating_sub(snapshot.copy);
        snapshot.retried = moved.len();
        snapshot.notes.extend_from_slice(self.source.notes());
        let started = Instant::now();
        self.retry_moved(moved, &mut done, &mut snapshot)?;
        snapshot.copy += started.elapsed();
        if self.unwinder.is_exhausted() {
            snapshot.notes.push(format!(
                "unwinding was stopped after {} steps: the unwind information of a mapped file is malformed or \
                 hostile, and stacks are incomplete",
                limits::STEPS
            ));
        }
        snapshot.notes.extend(self.unwinder.problems(&self.modules));
        let started = Instant::now();
        self.name(done, &mut snapshot);
        snapshot.symbolize = started.elapsed();
        snapshot.notes.extend(self.names.problems());
        if snapshot.shallow > 0 {
            // The text must be the same in each snapshot, because consumers list each distinct note once.
            snapshot.notes.push(format!(
                "some stacks are cut and marked truncated: a snapshot copies at most {} MB of stacks; \
                 other threads are copied completely in the next one",
                self.max_bytes / 1_000_000,
            ));
        }
        self.distinct_stacks =
            snapshot.threads.iter().map(|thread| thread.stack).collect::<FxHashSet<_>>().len();
        Ok(snapshot)
    }

    /// Return the current run counts of threads. If a count is the same in [`Process::copied_run_counts`]
    /// after the next snapshot, or was the same after the last one, the thread did not run in between.
    ///
    /// A method that stops threads returns none, because stopping a thread makes it run.
    pub fn run_counts(&mut self, tids: &[u32]) -> Vec<(u32, u64)> {
        if self.source.stops_threads() { Vec::new() } else { self.run_counts.read(tids) }
    }

    /// Return the run counts that threads had when the last snapshot copied them, if they were off the CPU
    /// then.
    pub fn copied_run_counts(&self, tids: &[u32]) -> Vec<(u32, u64)> {
        tids.iter().filter_map(|tid| Some((*tid, self.cached_stacks.get(tid)?.ran))).collect()
    }

    /// Resolve the symbols, and cache the complete stacks of threads that were off the CPU.
    fn name(&mut self, done: Vec<UnwoundThread>, snapshot: &mut Snapshot) {
        let mut pacer = Pacer::start();
        snapshot.threads.reserve_exact(done.len());
        for finished in done {
            pacer.yield_if_due();
            let cacheable = finished.thread.consistency == Consistency::Consistent
                && finished.is_final()
                && !finished.thread.shallow;
            let UnwoundThread { thread, trust, stack } = finished;
            let (stack, addresses) = match stack {
                Stack::Cached(id, addresses) if self.names.get(id).is_some() => (id, addresses),
                Stack::Cached(_, addresses) => self.names.intern(&self.modules, (*addresses).clone()),
                Stack::Unwound(walk) => {
                    self.names.intern(&self.modules, (walk.addresses, thread.kernel.clone()))
                }
            };
            let dropped = self.names.is_dropped(stack);
            let trust = if dropped { Trust::Truncated } else { trust };
            snapshot.unchanged += usize::from(thread.unchanged);
            snapshot.shallow += usize::from(thread.shallow);
            if cacheable && !dropped {
                let (switches, ran) = (thread.switches, thread.ran);
                self.cached_stacks.insert(thread.tid, CachedStack { switches, ran, trust, stack, addresses });
            }
            snapshot.threads.push(Thread { raw: thread, trust, stack });
        }
        snapshot.threads.sort_by_key(|thread| thread.raw.tid);
    }

    /// Unwind the threads in one part of the copy. Up to a limit, threads that ran in the meantime are added
    /// to `moved` for a retry, without their stack bytes.
    fn walk_part(
        &mut self,
        part: Vec<RawThread>,
        previous: &mut FxHashMap<u32, CachedStack>,
        done: &mut Vec<UnwoundThread>,
        moved: &mut Vec<RawThread>,
        refreshed: &mut bool,
    ) -> Result<()> {
        let (mut late, mut outside) = (Vec::new(), Vec::new());
        let mut pacer = Pacer::start();
        for thread in part {
            pacer.yield_if_due();
            match previous.remove(&thread.tid) {
                Some(known) if thread.unchanged && known.switches == thread.switches => {
                    let CachedStack { trust, stack, addresses, .. } = known;
                    let thread = thread.without_stack();
                    done.push(UnwoundThread { thread, trust, stack: Stack::Cached(stack, addresses) });
                }
                _ if thread.unchanged || thread.consistency != Consistency::Consistent => late.push(thread),
                _ if *refreshed => self.finish_or_defer(thread, done, &mut late)?,
                _ => {
                    let stack = thread.stack.clone();
                    self.finish_or_defer(thread, done, &mut late)?;
                    // The code, for example a plugin, may have been mapped since the maps were read.
                    if let Some(last) = done.pop_if(|last| last.left_modules()) {
                        outside.push(RawThread { stack, ..last.thread });
                    }
                }
            }
        }
        if !outside.is_empty() {
            *refreshed = true;
            if self.modules.refresh()? {
                self.unwinder = self.unwinder.renewed(&self.modules);
                self.names.clear();
            }
        }
        for thread in outside {
            self.finish_or_defer(thread, done, &mut late)?;
        }
        for thread in late {
            if moved.len() < MAX_RETRIED {
                moved.push(thread.without_stack());
            } else {
                done.push(self.finish_as_copied(thread));
            }
        }
        Ok(())
    }

    fn finish_or_defer(
        &mut self,
        thread: RawThread,
        done: &mut Vec<UnwoundThread>,
        moved: &mut Vec<RawThread>,
    ) -> Result<()> {
        match self.finish_consistent(thread)? {
            Ok(finished) => done.push(finished),
            Err(thread) => moved.push(thread),
        }
        Ok(())
    }
}

/// Reject a process of another architecture: this build has the registers, unwind rules and system call
/// numbers of its own architecture only.
fn refuse_other_architecture(pid: u32, modules: &Modules) -> Result<()> {
    let machine = modules.all().iter().find_map(|module| module.elf.as_ref()).map(|elf| elf.machine());
    match machine {
        Some(machine) if machine != std::env::consts::ARCH => {
            let detail = format!(
                "process {pid} runs {machine} code, but this build supports only {}",
                std::env::consts::ARCH
            );
            Err(Error::new(Kind::Arch, detail))
        }
        _ => Ok(()),
    }
}
