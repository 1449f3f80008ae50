//! One look at all threads of a process: copy, unwind, mend what moved, name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Kind, Result};
use crate::look::{Look, Thread, Trust};
use crate::memory;
use crate::modules::Modules;
use crate::names::{Frame, StackNames};
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::ptrace::PtraceSource;
use crate::snapshot::{Motion, RawThread, Registers, Source, perf};
use crate::symbols::{DebugSearch, limits};
use crate::turn::Turn;
use crate::unwind::{End, Unwinder, Walk};

/// Rounds of sampling and copying again that a thread gets which moved or was on a CPU.
const ROUNDS: usize = 5;
/// Wait for the samples of one round. A thread that runs is sampled within some 20 µs of its CPU time; one that
/// went to sleep meanwhile is not, and is copied again.
const PATIENCE: Duration = Duration::from_millis(1);
/// Most of a deep stack that is fetched in a second go.
const DEEP_BYTES: usize = 1024 * 1024;
/// Distinct stacks kept between looks beyond twice those of the last one; then all are forgotten, so that memory
/// stays flat. Threads that compute bring new ones at each look.
const STACKS_SPARE: usize = 64;

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

/// A process to look at.
pub struct Process {
    pid: u32,
    source: Box<dyn Source>,
    /// Why ptrace was taken although BPF was preferred.
    pub method_reason: Option<String>,
    modules: Modules,
    unwinder: Unwinder,
    names: StackNames,
    /// Distinct stacks in the last look.
    present: usize,
    /// Those of the last look that were at rest, by thread id.
    at_rest: FxHashMap<u32, AtRest>,
}

/// What became of a thread that stood still: it holds until the thread has run.
struct AtRest {
    switches: u64,
    walk: Walk,
    trust: Trust,
    kernel: Vec<u64>,
}

impl Process {
    /// Opens the process's modules and prepares the method. `kept` is what `fitted` told before on this kernel.
    ///
    /// Errors: `Gone`, `Rights`, `Bpf` when BPF was demanded, `Internal`.
    pub fn new(
        pid: u32,
        method: Method,
        search: DebugSearch,
        inlines: bool,
        kernel: bool,
        kept: Option<&[u8]>,
    ) -> Result<Self> {
        let modules = Modules::new(pid, search)?;
        if modules.all().is_empty() {
            return Err(Error::new(
                Kind::Gone,
                format!("process {pid} has no code mapped: it is ending, or a kernel thread"),
            ));
        }
        refuse_other_architecture(pid, &modules)?;
        let (source, method_reason) = open_source(pid, method, kernel, kept)?;
        let unwinder = Unwinder::new(&modules);
        Ok(Self {
            pid,
            source,
            method_reason,
            modules,
            unwinder,
            names: StackNames::new(inlines, kernel),
            present: 0,
            at_rest: FxHashMap::default(),
        })
    }

    /// "bpf" or "ptrace".
    pub fn method(&self) -> &'static str {
        self.source.name()
    }

    /// What the next start on this build of the kernel can be given as `kept`; None where there is nothing new.
    pub fn fitted(&self) -> Option<&[u8]> {
        self.source.fitted()
    }

    /// The modules as of the last look.
    pub fn modules(&self) -> &Modules {
        &self.modules
    }

    /// The frames of a stack of the last look.
    pub fn frames(&self, stack: u32) -> Option<&Arc<Vec<Frame>>> {
        self.names.get(stack)
    }

    /// Copies, unwinds and names the stacks of all threads.
    ///
    /// Errors: `Gone` when the process ended before the copy; else those of the method.
    pub fn look(&mut self) -> Result<Look> {
        if self.names.len() > 2 * self.present + STACKS_SPARE {
            self.names.forget_stacks();
        }
        self.unwinder.refill();
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
        if self.unwinder.is_exhausted() {
            look.notes.push(format!(
                "unwinding was stopped after {} steps: the unwind information of a mapped file is malformed or \
                 hostile, and stacks are incomplete",
                limits::STEPS
            ));
        }
        let started = Instant::now();
        let mut turn = Turn::begin();
        for (thread, walk, trust) in done {
            turn.give_way();
            self.remember(&thread, &walk, trust);
            let stack = self.names.intern(&self.modules, walk.addresses, &thread.kernel);
            look.threads.push(Thread { raw: RawThread { stack: Vec::new().into(), ..thread }, trust, stack });
        }
        look.symbolise = started.elapsed();
        look.threads.sort_by_key(|thread| thread.raw.tid);
        self.present = look.threads.iter().map(|thread| thread.stack).collect::<FxHashSet<_>>().len();
        Ok(look)
    }

    /// Keeps the walk of a thread at rest. A walk that met code of no module may lead on once that is known, one
    /// that ran out of steps at the next look.
    fn remember(&mut self, thread: &RawThread, walk: &Walk, trust: Trust) {
        if thread.motion == Motion::Still && !matches!(walk.end, End::Elsewhere | End::Budget) {
            let (walk, kernel) = (walk.clone(), thread.kernel.clone());
            self.at_rest.insert(thread.tid, AtRest { switches: thread.switches, walk, trust, kernel });
        }
    }

    /// Takes the threads that have not run from the last look; one that it does not have is to be copied again.
    fn take_unchanged(&mut self, raw: Vec<RawThread>) -> (Vec<Finished>, Vec<RawThread>, Vec<RawThread>) {
        let mut before = std::mem::take(&mut self.at_rest);
        let (mut done, mut open, mut fresh) = (Vec::with_capacity(raw.len()), Vec::new(), Vec::new());
        for thread in raw {
            match before.remove(&thread.tid) {
                _ if !thread.unchanged => fresh.push(thread),
                Some(AtRest { switches, walk, trust, kernel }) if switches == thread.switches => {
                    done.push((RawThread { kernel, ..thread }, walk, trust));
                }
                _ => open.push(thread),
            }
        }
        (done, open, fresh)
    }

    /// Walks what stood still; the threads that did not come back for another try.
    fn walk_all(&mut self, raw: Vec<RawThread>) -> Result<(Vec<Finished>, Vec<RawThread>)> {
        let (mut done, mut moved, fresh) = self.take_unchanged(raw);
        let (still, running): (Vec<_>, Vec<_>) =
            fresh.into_iter().partition(|thread| thread.motion == Motion::Still);
        moved.extend(running);
        self.finish_all(still, &mut done, &mut moved)?;
        let elsewhere = |finished: &Finished| finished.1.end == End::Elsewhere;
        // A plugin that was loaded since, for one.
        if done.iter().any(elsewhere) && self.modules.refresh()? {
            self.unwinder = self.unwinder.renewed(&self.modules);
            self.names.forget();
            let (again, kept): (Vec<_>, Vec<_>) = done.into_iter().partition(elsewhere);
            done = kept;
            self.finish_all(again.into_iter().map(|(thread, ..)| thread), &mut done, &mut moved)?;
        }
        Ok((done, moved))
    }

    fn finish_all(
        &mut self,
        still: impl IntoIterator<Item = RawThread>,
        done: &mut Vec<Finished>,
        moved: &mut Vec<RawThread>,
    ) -> Result<()> {
        let mut turn = Turn::begin();
        for thread in still {
            turn.give_way();
            match self.finish_still(thread)? {
                Ok(finished) => done.push(finished),
                Err(thread) => moved.push(thread),
            }
        }
        Ok(())
    }

    /// Walks a consistent copy, fetching more of its stack if it goes on; gives the thread back if it moved then.
    fn finish_still(&mut self, thread: RawThread) -> Result<std::result::Result<Finished, RawThread>> {
        let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns);
        Ok(match walk.end {
            End::Root => Ok((thread, walk, Trust::Exact)),
            End::Lost | End::Elsewhere | End::Budget => Ok((thread, walk, Trust::Incomplete)),
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
        let walk = self.unwinder.walk(&self.modules, thread.registers, &stack, &thread.returns);
        let trust = match walk.end {
            End::Root => Trust::Exact,
            End::BeyondCopy if stack.len() == DEEP_BYTES => Trust::Truncated,
            End::BeyondCopy | End::Lost | End::Elsewhere | End::Budget => Trust::Incomplete,
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
            let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns);
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
            let walk =
                self.unwinder.walk(&self.modules, sample.registers, &sample.stack, &open[index].returns);
            let trust = match walk.end {
                End::Root => Trust::OnCpu,
                End::BeyondCopy => Trust::Truncated,
                // Mid-prologue in hand-written assembler, say: the next sample may fare better.
                End::Lost | End::Elsewhere | End::Budget => continue,
            };
            look.sampled += 1;
            let thread = open.swap_remove(index);
            done.push((RawThread { registers: sample.registers, syscall: -1, ..thread }, walk, trust));
        }
    }
}

/// Registers, unwind rules and system calls are those of one architecture.
fn refuse_other_architecture(pid: u32, modules: &Modules) -> Result<()> {
    let machine = modules.all().iter().find_map(|module| module.elf.as_ref()).map(|elf| elf.machine());
    match machine {
        Some(machine) if machine != std::env::consts::ARCH => {
            let detail = format!(
                "process {pid} runs {machine} code, this build looks into {}",
                std::env::consts::ARCH
            );
            Err(Error::new(Kind::Arch, detail))
        }
        _ => Ok(()),
    }
}

type Finished = (RawThread, Walk, Trust);

fn open_source(
    pid: u32,
    method: Method,
    kernel: bool,
    kept: Option<&[u8]>,
) -> Result<(Box<dyn Source>, Option<String>)> {
    let ptrace = || Box::new(PtraceSource::new(pid));
    match method {
        Method::Bpf => Ok((Box::new(BpfSource::new(pid, kernel, kept)?), None)),
        Method::Ptrace => Ok((ptrace(), None)),
        Method::Auto => match BpfSource::new(pid, kernel, kept) {
            Ok(source) => Ok((Box::new(source), None)),
            Err(error) if error.kind == Kind::Gone => Err(error),
            Err(error) => Ok((ptrace(), Some(error.detail))),
        },
    }
}
