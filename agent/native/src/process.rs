//! One look at all threads of a process: copy, unwind, mend what moved, name.

mod mend;

use std::sync::Arc;
use std::time::Instant;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Kind, Result};
use crate::look::{Look, Thread, Trust};
use crate::modules::Modules;
use crate::names::{Addresses, Frame, StackNames};
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::ptrace::PtraceSource;
use crate::snapshot::{Motion, RawThread, Source};
use crate::symbols::{DebugSearch, limits};
use crate::turn::Turn;
use crate::unwind::{End, Unwinder, Walk};

/// Threads that get another try after they moved; more are shown as they were copied.
const MEND_MOST: usize = 1_000;
/// Distinct stacks kept between looks beyond twice those of the last one; then all are forgotten, so that memory
/// stays flat. Threads that compute bring new ones at each look.
const STACKS_SPARE: usize = 64;

/// How to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The task iterator.
    Bpf,
    /// One thread at a time, held for some microseconds.
    Ptrace,
}

/// A process to look at.
pub struct Process {
    pid: u32,
    source: Box<dyn Source>,
    modules: Modules,
    unwinder: Unwinder,
    names: StackNames,
    /// Distinct stacks in the last look.
    present: usize,
    /// Those of the last look that were at rest, by thread id.
    at_rest: FxHashMap<u32, AtRest>,
    /// Bytes of stacks that one look copies, and as many again of deep ones.
    most_bytes: u64,
    /// Of the deep ones, what is left of this look's.
    deep_left: u64,
}

/// What became of a thread that stood still: it holds until the thread has run.
struct AtRest {
    switches: u64,
    trust: Trust,
    stack: u32,
    addresses: Arc<Addresses>,
}

/// A thread that is done, but for names.
struct Finished {
    thread: RawThread,
    trust: Trust,
    stack: Stack,
}

enum Stack {
    /// Unwound now.
    Walked(Walk),
    /// As at the last look; the names may have been dropped since.
    Known(u32, Arc<Addresses>),
}

impl Finished {
    fn new(thread: RawThread, walk: Walk, trust: Trust) -> Self {
        Self { thread: thread.without_stack(), trust, stack: Stack::Walked(walk) }
    }

    /// Whether the walk leads as far at the next snapshot: not if it met code of no module, which may be known
    /// by then, or if it ran out of steps.
    fn is_final(&self) -> bool {
        !matches!(&self.stack, Stack::Walked(walk) if matches!(walk.end, End::Elsewhere | End::Budget))
    }

    /// Whether the walk met code of no module.
    fn is_elsewhere(&self) -> bool {
        matches!(&self.stack, Stack::Walked(walk) if walk.end == End::Elsewhere)
    }
}

impl Process {
    /// Opens the process's modules and prepares the method. `kept` is what `fitted` told before on this kernel.
    ///
    /// Errors: `Gone`, `Rights`, `Bpf`, `Internal`.
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
        let source: Box<dyn Source> = match method {
            Method::Bpf => Box::new(BpfSource::new(pid, kernel, kept)?),
            Method::Ptrace => Box::new(PtraceSource::new(pid)),
        };
        let unwinder = Unwinder::new(&modules);
        Ok(Self {
            pid,
            source,
            modules,
            unwinder,
            names: StackNames::new(inlines, kernel),
            present: 0,
            at_rest: FxHashMap::default(),
            most_bytes: u64::MAX,
            deep_left: u64::MAX,
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

    /// Limits the bytes of stacks that a look copies, and of those that it fetches in a second go.
    pub fn limit(&mut self, most_bytes: u64) {
        self.most_bytes = most_bytes;
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
        let (mut done, mut moved) = (Vec::new(), Vec::new());
        let mut before = std::mem::take(&mut self.at_rest);
        let mut refreshed = false;
        self.deep_left = self.most_bytes;
        let started = Instant::now();
        self.source.begin(self.most_bytes)?;
        // Part by part, so that the stacks of 20,000 threads are never in memory together.
        loop {
            let part = self.source.next()?;
            if part.is_empty() {
                break;
            }
            look.copy = started.elapsed();
            self.walk_part(part, &mut before, &mut done, &mut moved, &mut refreshed)?;
        }
        drop(before);
        if done.is_empty() && moved.is_empty() {
            return Err(Error::new(Kind::Gone, format!("process {} ended", self.pid)));
        }
        look.unwind = started.elapsed().saturating_sub(look.copy);
        look.retried = moved.len();
        look.notes.extend_from_slice(self.source.notes());
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
        self.name(done, &mut look);
        look.symbolise = started.elapsed();
        if look.shallow > 0 {
            // The same words each time: readers list each distinct note once.
            look.notes.push(format!(
                "some stacks are cut and marked truncated: a snapshot copies at most {} MB; other threads have \
                 their turn at the next",
                self.most_bytes / 1_000_000,
            ));
        }
        self.present = look.threads.iter().map(|thread| thread.stack).collect::<FxHashSet<_>>().len();
        Ok(look)
    }

    /// Names the stacks, and remembers those of threads at rest.
    fn name(&mut self, done: Vec<Finished>, look: &mut Look) {
        let mut turn = Turn::begin();
        look.threads.reserve_exact(done.len());
        for finished in done {
            turn.give_way();
            let keep =
                finished.thread.motion == Motion::Still && finished.is_final() && !finished.thread.shallow;
            let Finished { thread, trust, stack } = finished;
            let (stack, addresses) = match stack {
                Stack::Known(id, addresses) if self.names.get(id).is_some() => (id, addresses),
                Stack::Known(_, addresses) => self.names.intern(&self.modules, (*addresses).clone()),
                Stack::Walked(walk) => {
                    self.names.intern(&self.modules, (walk.addresses, thread.kernel.clone()))
                }
            };
            look.shallow += usize::from(thread.shallow);
            if keep {
                let switches = thread.switches;
                self.at_rest.insert(thread.tid, AtRest { switches, trust, stack, addresses });
            }
            look.threads.push(Thread { raw: thread, trust, stack });
        }
        look.threads.sort_by_key(|thread| thread.raw.tid);
    }

    /// Walks what stood still in one part of the copy. Threads that did not are left for another try, without their
    /// stacks, while there is room.
    fn walk_part(
        &mut self,
        part: Vec<RawThread>,
        before: &mut FxHashMap<u32, AtRest>,
        done: &mut Vec<Finished>,
        moved: &mut Vec<RawThread>,
        refreshed: &mut bool,
    ) -> Result<()> {
        let (mut late, mut elsewhere) = (Vec::new(), Vec::new());
        let mut turn = Turn::begin();
        for thread in part {
            turn.give_way();
            match before.remove(&thread.tid) {
                Some(known) if thread.unchanged && known.switches == thread.switches => {
                    let AtRest { trust, stack, addresses, .. } = known;
                    let thread = thread.without_stack();
                    done.push(Finished { thread, trust, stack: Stack::Known(stack, addresses) });
                }
                _ if thread.unchanged || thread.motion != Motion::Still => late.push(thread),
                _ if *refreshed => self.finish_or_defer(thread, done, &mut late)?,
                _ => {
                    let stack = thread.stack.clone();
                    self.finish_or_defer(thread, done, &mut late)?;
                    // A plugin that was loaded since, for one.
                    if let Some(last) = done.pop_if(|last| last.is_elsewhere()) {
                        elsewhere.push(RawThread { stack, ..last.thread });
                    }
                }
            }
        }
        if !elsewhere.is_empty() {
            *refreshed = true;
            if self.modules.refresh()? {
                self.unwinder = self.unwinder.renewed(&self.modules);
                self.names.forget();
            }
        }
        for thread in elsewhere {
            self.finish_or_defer(thread, done, &mut late)?;
        }
        for thread in late {
            if moved.len() < MEND_MOST {
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
        done: &mut Vec<Finished>,
        moved: &mut Vec<RawThread>,
    ) -> Result<()> {
        match self.finish_still(thread)? {
            Ok(finished) => done.push(finished),
            Err(thread) => moved.push(thread),
        }
        Ok(())
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
