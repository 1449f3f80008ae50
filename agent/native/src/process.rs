//! One look at all threads of a process: copy, unwind, mend what moved, name.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use crate::error::{Error, Kind, Result};
use crate::memory;
use crate::modules::Modules;
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::ptrace::PtraceSource;
use crate::snapshot::{Motion, RawThread, Registers, Source, perf};
use crate::symbols::{DebugSearch, Kallsyms, demangle};
use crate::unwind::{End, Unwinder, Walk};

/// Rounds of sampling and copying again that a thread gets which moved or was on a CPU.
const ROUNDS: usize = 5;
/// Wait for the samples of one round; a thread that runs is sampled within some 20 µs of its CPU time.
const PATIENCE: Duration = Duration::from_millis(4);
/// Most of a deep stack that is fetched in a second go.
const DEEP_BYTES: usize = 1024 * 1024;
/// Distinct stacks kept between looks; then all are forgotten, so that memory stays flat.
const STACKS_KEPT: usize = 20_000;

/// How to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// BPF, or ptrace where that cannot be.
    Auto,
    /// The task iterator.
    Bpf,
    /// One thread at a time, held for some microseconds.
    Ptrace,
}

/// How far a thread's stack can be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// One function on a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Demangled, without parameters; None where no symbol covers the address.
    pub function: Option<String>,
    /// Base name of the file.
    pub module: Arc<str>,
    /// Address in the file's own terms.
    pub offset: u64,
    /// The compiler inlined it into the next frame.
    pub inlined: bool,
    /// Part of the kernel.
    pub kernel: bool,
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
    /// What was degraded, in words.
    pub notes: Vec<String>,
}

/// A process to look at.
pub struct Process {
    pid: u32,
    source: Box<dyn Source>,
    /// Why ptrace was taken although BPF was preferred.
    pub method_reason: Option<String>,
    modules: Modules,
    unwinder: Unwinder,
    inlines: bool,
    kallsyms: Option<Kallsyms>,
    stack_ids: FxHashMap<(Vec<u64>, Vec<u64>), u32>,
    stacks: FxHashMap<u32, Arc<Vec<Frame>>>,
    frames: FxHashMap<u64, Arc<Vec<Frame>>>,
    next_id: u32,
}

impl Process {
    /// Opens the process's modules and prepares the method.
    ///
    /// Errors: `Gone`, `Rights`, `Bpf` when BPF was demanded, `Internal`.
    pub fn new(pid: u32, method: Method, search: DebugSearch, inlines: bool, kernel: bool) -> Result<Self> {
        let modules = Modules::new(pid, search)?;
        if modules.all().is_empty() {
            return Err(Error::new(
                Kind::Gone,
                format!("process {pid} has no code mapped: it is ending, or a kernel thread"),
            ));
        }
        let (source, method_reason) = open_source(pid, method, kernel)?;
        let kallsyms = if kernel { Kallsyms::load().ok() } else { None };
        let unwinder = Unwinder::new(&modules);
        Ok(Self {
            pid,
            source,
            method_reason,
            modules,
            unwinder,
            inlines,
            kallsyms,
            stack_ids: FxHashMap::default(),
            stacks: FxHashMap::default(),
            frames: FxHashMap::default(),
            next_id: 0,
        })
    }

    /// "bpf" or "ptrace".
    pub fn method(&self) -> &'static str {
        self.source.name()
    }

    /// The modules as of the last look.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The frames of a stack of the last look.
    pub fn frames(&self, stack: u32) -> Option<&Arc<Vec<Frame>>> {
        self.stacks.get(&stack)
    }

    /// Copies, unwinds and names the stacks of all threads.
    ///
    /// Errors: `Gone` when the process ended before the copy; else those of the method.
    pub fn look(&mut self) -> Result<Look> {
        if self.stacks.len() > STACKS_KEPT {
            self.forget_stacks();
        }
        let mut look = Look::default();
        let started = Instant::now();
        let raw = self.source.copy_all()?;
        look.copy = started.elapsed();
        if raw.is_empty() {
            return Err(Error::new(Kind::Gone, format!("process {} ended", self.pid)));
        }
        let started = Instant::now();
        let (mut done, moved) = self.walk_all(raw)?;
        look.unwind = started.elapsed();
        look.retried = moved.len();
        let started = Instant::now();
        self.mend(moved, &mut done, &mut look)?;
        look.copy += started.elapsed();
        let started = Instant::now();
        for (thread, walk, trust) in done {
            let stack = self.intern(walk.addresses, &thread.kernel);
            look.threads.push(Thread { raw: RawThread { stack: Vec::new().into(), ..thread }, trust, stack });
        }
        look.symbolise = started.elapsed();
        look.threads.sort_by_key(|thread| thread.raw.tid);
        Ok(look)
    }

    /// Walks what stood still; the threads that did not come back for another try.
    fn walk_all(&mut self, raw: Vec<RawThread>) -> Result<(Vec<Finished>, Vec<RawThread>)> {
        self.refresh_if_unknown(&raw)?;
        let mut done = Vec::with_capacity(raw.len());
        let mut moved = Vec::new();
        for thread in raw {
            if thread.motion == Motion::Still {
                match self.finish_still(thread)? {
                    Ok(finished) => done.push(finished),
                    Err(thread) => moved.push(thread),
                }
            } else {
                moved.push(thread);
            }
        }
        Ok((done, moved))
    }

    /// Reads the maps again when a thread is in code that was not there before (a plugin, for one).
    fn refresh_if_unknown(&mut self, raw: &[RawThread]) -> Result<()> {
        let unknown =
            |thread: &RawThread| thread.registers.ip != 0 && self.modules.at(thread.registers.ip).is_none();
        if raw.iter().any(unknown) && self.modules.refresh()? {
            self.unwinder = Unwinder::new(&self.modules);
            self.forget_stacks();
        }
        Ok(())
    }

    /// Walks a consistent copy, fetching more of its stack if it goes on; gives the thread back if it moved then.
    fn finish_still(&mut self, thread: RawThread) -> Result<std::result::Result<Finished, RawThread>> {
        let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack);
        Ok(match walk.end {
            End::Root => Ok((thread, walk, Trust::Exact)),
            End::Lost => Ok((thread, walk, Trust::Incomplete)),
            End::BeyondCopy => return self.finish_deep(thread, walk),
        })
    }

    /// A stack that goes on above the copy: the rest is read at leisure, and counts only if the thread has
    /// not run since.
    fn finish_deep(
        &mut self,
        thread: RawThread,
        short: Walk,
    ) -> Result<std::result::Result<Finished, RawThread>> {
        let Registers { sp, .. } = thread.registers;
        let stack = memory::read_some(self.pid, sp, DEEP_BYTES).unwrap_or_default();
        if stack.len() <= thread.stack.len() {
            return Ok(Ok((thread, short, Trust::Incomplete)));
        }
        let unmoved = self
            .source
            .glance(thread.tid)?
            .is_some_and(|now| now.motion == Motion::Still && now.switches == thread.switches);
        if !unmoved && self.source.name() == "bpf" {
            return Ok(Err(thread));
        }
        let walk = self.unwinder.walk(&self.modules, thread.registers, &stack);
        let trust = match walk.end {
            End::Root => Trust::Exact,
            End::BeyondCopy if stack.len() == DEEP_BYTES => Trust::Truncated,
            End::BeyondCopy | End::Lost => Trust::Incomplete,
        };
        Ok(Ok((thread, walk, trust)))
    }

    /// Threads that ran: those on a CPU are sampled, the others copied again, for some rounds.
    fn mend(&mut self, moved: Vec<RawThread>, done: &mut Vec<Finished>, look: &mut Look) -> Result<()> {
        let mut open = moved;
        for _ in 0..ROUNDS {
            if open.is_empty() {
                return Ok(());
            }
            self.sample_running(&mut open, done, look);
            for thread in std::mem::take(&mut open) {
                match self.source.copy_one(thread.tid)? {
                    Some(again) if again.motion == Motion::Still => match self.finish_still(again)? {
                        Ok(finished) => done.push(finished),
                        Err(thread) => open.push(thread),
                    },
                    Some(again) => open.push(again),
                    None => {} // it ended
                }
            }
        }
        self.sample_running(&mut open, done, look);
        for thread in open {
            let trust = if thread.motion == Motion::Moved { Trust::Torn } else { Trust::Stale };
            let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack);
            done.push((thread, walk, trust));
        }
        Ok(())
    }

    /// Takes fresh samples of those that are on a CPU; who does not run in the meantime stays in `open`.
    fn sample_running(&mut self, open: &mut Vec<RawThread>, done: &mut Vec<Finished>, look: &mut Look) {
        let running: Vec<u32> =
            open.iter().filter(|thread| thread.motion == Motion::Running).map(|thread| thread.tid).collect();
        if running.is_empty() || self.source.name() != "bpf" {
            return;
        }
        let samples = match perf::sample(&running, PATIENCE) {
            Ok(samples) => samples,
            Err(error) => {
                let note = format!(
                    "threads on a CPU could not be sampled (perf_event_open: {error}); their stacks are stale"
                );
                if !look.notes.contains(&note) {
                    look.notes.push(note);
                }
                return;
            }
        };
        for sample in samples {
            let Some(index) = open.iter().position(|thread| thread.tid == sample.tid) else {
                continue;
            };
            let walk = self.unwinder.walk(&self.modules, sample.registers, &sample.stack);
            let trust = match walk.end {
                End::Root => Trust::OnCpu,
                End::BeyondCopy => Trust::Truncated,
                // Mid-prologue in hand-written assembler, say: the next sample may fare better.
                End::Lost => continue,
            };
            look.sampled += 1;
            let thread = open.swap_remove(index);
            done.push((RawThread { registers: sample.registers, syscall: -1, ..thread }, walk, trust));
        }
    }

    fn forget_stacks(&mut self) {
        self.stack_ids.clear();
        self.stacks.clear();
        self.frames.clear();
    }

    /// The id of a stack; a new one is named.
    fn intern(&mut self, addresses: Vec<u64>, kernel: &[u64]) -> u32 {
        match self.stack_ids.entry((addresses, kernel.to_vec())) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let id = self.next_id;
                self.next_id = self.next_id.wrapping_add(1);
                let (addresses, kernel) = entry.key();
                let mut frames: Vec<Frame> =
                    kernel.iter().map(|address| kernel_frame(self.kallsyms.as_ref(), *address)).collect();
                for (depth, address) in addresses.iter().enumerate() {
                    // A return address belongs to the call before it.
                    let lookup = if depth == 0 { *address } else { address.wrapping_sub(1) };
                    let named = self
                        .frames
                        .entry(lookup)
                        .or_insert_with(|| Arc::new(name(&self.modules, *address, lookup, self.inlines)));
                    frames.extend(named.iter().cloned());
                }
                entry.insert(id);
                self.stacks.insert(id, Arc::new(frames));
                id
            }
        }
    }
}

type Finished = (RawThread, Walk, Trust);

fn open_source(pid: u32, method: Method, kernel: bool) -> Result<(Box<dyn Source>, Option<String>)> {
    let ptrace = || Box::new(PtraceSource::new(pid));
    match method {
        Method::Bpf => Ok((Box::new(BpfSource::new(pid, kernel)?), None)),
        Method::Ptrace => Ok((ptrace(), None)),
        Method::Auto => match BpfSource::new(pid, kernel) {
            Ok(source) => Ok((Box::new(source), None)),
            Err(error) if error.kind == Kind::Gone => Err(error),
            Err(error) => Ok((ptrace(), Some(error.detail))),
        },
    }
}

/// The frames of one address: inlined functions first, then the function that is really there.
fn name(modules: &Modules, address: u64, lookup: u64, inlines: bool) -> Vec<Frame> {
    let Some(index) = modules.at(lookup) else {
        return vec![Frame {
            function: None,
            module: "?".into(),
            offset: address,
            inlined: false,
            kernel: false,
        }];
    };
    let svma = modules.all()[index].svma(lookup);
    let calls = if inlines { modules.inlined(index, svma) } else { Vec::new() };
    let module = &modules.all()[index];
    let shared: Arc<str> = module.name().into();
    let offset = module.svma(address);
    let frame =
        |function, inlined| Frame { function, module: Arc::clone(&shared), offset, inlined, kernel: false };
    let mut frames: Vec<Frame> = calls.into_iter().map(|function| frame(Some(function), true)).collect();
    let symbol = module.symbols.lookup(svma).map(|symbol| demangle(symbol.name));
    // Old C libraries give their entry function no size.
    let function = symbol.or_else(|| module.is_entry(lookup).then(|| "_start".to_owned()));
    frames.push(frame(function, false));
    frames
}

fn kernel_frame(kallsyms: Option<&Kallsyms>, address: u64) -> Frame {
    let function = kallsyms.and_then(|names| names.lookup(address)).map(|(name, _)| name);
    Frame { function, module: "kernel".into(), offset: address, inlined: false, kernel: true }
}
