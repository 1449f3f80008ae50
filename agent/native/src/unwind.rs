//! Offline unwinding: converts registers and stack bytes to return addresses, using `.eh_frame`.
//!
//! The mapped files belong to the observed process and may be hostile, so they must not determine how long
//! unwinding takes. Entries and expressions have limits ([`limits`]), and all walks of one snapshot share a
//! budget of steps.

mod callers;

use rustc_hash::FxHashMap;

use crate::arch::{Arch, Call, NATIVE};
use crate::cfi::{self, Caller, Frame, Memory, Rule, UnwindTable};
use crate::modules::Modules;
use crate::snapshot::Registers;
use crate::symbols::limits;

/// Maximum number of functions whose calls are cached.
const MOST_LEAVES: usize = 64;

/// The reason why a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The walk reached a function that has no caller: `_start`, or the start function of a thread.
    Root,
    /// The stack continues above the bytes that were copied.
    BeyondCopy,
    /// The walk reached an address outside all known modules: code that was mapped later, or no code at all.
    OutsideModules,
    /// No caller could be found for an address inside a module.
    Lost,
    /// The frame pointer is needed but unknown, and could not be inferred from the stack.
    NoFramePointer,
    /// The return address is in the link register, which is unknown, and the caller could not be inferred.
    NoLinkRegister,
    /// The snapshot's budget of steps was used up.
    Budget,
}

/// One unwound stack.
#[derive(Debug, Clone)]
pub struct Walk {
    /// The instruction pointer followed by the return addresses, innermost first.
    pub addresses: Vec<u64>,
    /// The reason why the walk ended.
    pub end: End,
    /// True if a register was unknown and was inferred from the stack.
    pub inferred: bool,
}

impl Walk {
    /// Create the walk of a thread with unknown registers.
    pub fn unknown() -> Self {
        Self { addresses: Vec::new(), end: End::Lost, inferred: false }
    }
}

/// The copied bytes of a stack.
#[derive(Clone, Copy)]
struct CopiedStack<'a> {
    /// The address of the first byte.
    bottom: u64,
    bytes: &'a [u8],
    /// The replaced return addresses, as (stack pointer after the return, original address).
    returns: &'a [(u64, u64)],
}

impl CopiedStack<'_> {
    /// Return the word at an address, or None if it was not copied.
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.bottom)?).ok()?;
        Some(u64::from_le_bytes(*self.bytes.get(at..)?.first_chunk()?))
    }

    /// Return the address in a caller's frame or, if a return probe replaced it, the original one.
    fn unprobed(&self, modules: &Modules, caller: Frame) -> u64 {
        match self.returns.iter().find(|(sp, _)| *sp == caller.sp) {
            Some((_, original)) if modules.at(caller.ip).is_none() => *original,
            _ => caller.ip,
        }
    }

    /// Return the addresses of all aligned words at or above `from`.
    fn words_from(&self, from: u64) -> impl Iterator<Item = u64> + use<> {
        let end = self.bottom.saturating_add(self.bytes.len() as u64);
        (from.checked_next_multiple_of(8).unwrap_or(end)..end.saturating_sub(7)).step_by(8)
    }
}

/// How well a call instruction fits the function that is assumed to be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// A direct call to another function in the same file, which may end with a jump to the assumed function.
    Unlikely,
    /// An indirect call, or a call to another file through the procedure linkage table (PLT).
    Possible,
    /// A direct call to the assumed function.
    Certain,
}

/// Unwinds the threads of one process.
pub struct Unwinder {
    arch: &'static Arch,
    /// The tables, in the order of the modules. Each table is read when the first address in its module is
    /// unwound.
    tables: Vec<Option<UnwindTable>>,
    /// Cached unwind rules by address.
    rules: FxHashMap<u64, Rule>,
    /// Cached call instructions by return address.
    calls: FxHashMap<u64, Option<Call>>,
    /// Cached calls of functions that leave their return address in the link register: the addresses after
    /// the calls, by the function's start.
    sites: FxHashMap<u64, Vec<u64>>,
    steps: u64,
}

impl Unwinder {
    /// Create an unwinder for the current modules; call [`Unwinder::renewed`] when they change.
    pub fn new(modules: &Modules) -> Self {
        let tables = modules.all().iter().map(|_| None).collect();
        let machine = modules.all().iter().find_map(|module| module.elf.as_ref()).map(|elf| elf.machine());
        let arch = machine.and_then(Arch::named).unwrap_or(NATIVE);
        Self {
            arch,
            tables,
            rules: FxHashMap::default(),
            calls: FxHashMap::default(),
            sites: FxHashMap::default(),
            steps: limits::STEPS,
        }
    }

    /// Create an unwinder for the changed modules. It keeps the remaining budget of steps.
    #[must_use]
    pub fn renewed(&self, modules: &Modules) -> Self {
        Self { steps: self.steps, ..Self::new(modules) }
    }

    /// Reset the budget of steps for the next snapshot.
    pub fn refill(&mut self) {
        self.steps = limits::STEPS;
    }

    /// Return true if the snapshot's budget of steps is used up.
    pub fn is_exhausted(&self) -> bool {
        self.steps == 0
    }

    /// Unwind a stack, starting at `registers`; `stack` has its bytes from the stack pointer upwards.
    ///
    /// `returns` lists the return addresses that return probes (uretprobes) replaced, as (stack address,
    /// original return address), innermost first. Where a return address points to the kernel's `[uprobes]` page
    /// instead of the code of a module, the original address is used.
    ///
    /// If a caller depends on the frame pointer and `registers` does not have it, the frame pointer is
    /// inferred; see [`Unwinder::infer`].
    pub fn walk(
        &mut self,
        modules: &Modules,
        registers: Registers,
        stack: &[u8],
        returns: &[(u64, u64)],
    ) -> Walk {
        let Registers { ip, sp: bottom, bp, lr } = registers;
        let above = self.arch.above_return_probe;
        let returns: Vec<(u64, u64)> =
            returns.iter().map(|(slot, address)| (slot.wrapping_add(above), *address)).collect();
        let (ip, sp) = match returns.first() {
            // The thread is in the [uprobes] page: the call has returned, but the probe has not yet jumped to
            // the caller.
            Some((sp, address)) if modules.at(ip).is_none() => (*address, *sp),
            _ => (ip, bottom),
        };
        let stack = CopiedStack { bottom, bytes: stack, returns: &returns };
        let mut addresses = vec![ip];
        let frame = Frame { ip, sp, bp, lr, innermost: true };
        match self.follow(modules, frame, stack, &mut addresses) {
            (End::NoFramePointer, frame) => self.infer(modules, frame, stack, addresses),
            (End::NoLinkRegister, frame) => self.infer_caller(modules, frame, stack, addresses),
            (end, _) => Walk { addresses, end, inferred: false },
        }
    }

    /// Append the return addresses of all callers of `frame` to `addresses`. Return the reason why the walk
    /// ended, and the outermost frame.
    fn follow(
        &mut self,
        modules: &Modules,
        mut frame: Frame,
        stack: CopiedStack<'_>,
        addresses: &mut Vec<u64>,
    ) -> (End, Frame) {
        let mut memory = Memory { beyond: false, read: |address| stack.word(address) };
        let end = loop {
            // For an address outside all modules, the frame pointer would only be a guess, so the walk ends
            // here.
            let Some(index) = modules.at(frame.lookup()) else {
                break End::OutsideModules;
            };
            if modules.all()[index].is_entry(frame.lookup()) {
                break End::Root;
            }
            if addresses.len() >= limits::FRAMES {
                break End::Lost;
            }
            let Some(rule) = self.rule(modules, index, frame.lookup()) else {
                break End::Budget;
            };
            memory.beyond = false;
            let table = self.tables.get(index).and_then(Option::as_ref);
            let caller = match &self.arch.signal_frame {
                Some(signal) if modules.all()[index].is_vdso_code(frame.ip, signal.code) => {
                    cfi::interrupted(self.arch, signal, frame, &mut memory)
                }
                _ => rule.caller(self.arch, table, frame, &mut memory, &mut self.steps),
            };
            match caller {
                Some(Caller::At(caller)) => {
                    frame = Frame { ip: stack.unprobed(modules, caller), ..caller };
                    addresses.push(frame.ip);
                }
                Some(Caller::Top) => break End::Root,
                Some(Caller::NeedsFramePointer) => break End::NoFramePointer,
                Some(Caller::NeedsLinkRegister) => break End::NoLinkRegister,
                None if memory.beyond => break End::BeyondCopy,
                None => break End::Lost,
            }
        };
        let end = match end {
            End::Root if !self.is_root(modules, frame.lookup()) => End::Lost,
            End::BeyondCopy | End::Lost | End::NoFramePointer | End::NoLinkRegister
                if self.is_root(modules, frame.lookup()) =>
            {
                End::Root
            }
            other => other,
        };
        (end, frame)
    }

    /// Infer the frame pointer at `frame`, which the walk reached through `addresses`.
    ///
    /// In a function whose caller is found by the frame pointer, the frame pointer is the address of a word
    /// on its stack. So each word is tried. A walk is a solution if it reaches the root and each of its
    /// return addresses follows a call instruction. If there are several solutions, those whose first call
    /// best fits the function of `frame` are kept. The frames of outer callers give solutions that skip some
    /// callers, so the longest solution is accepted if each other solution is a tail of it.
    fn infer(
        &mut self,
        modules: &Modules,
        frame: Frame,
        stack: CopiedStack<'_>,
        addresses: Vec<u64>,
    ) -> Walk {
        let mut solutions: Vec<(Fit, Vec<u64>)> = Vec::new();
        let mut is_cut = false;
        for candidate in stack.words_from(frame.sp) {
            let mut callers = Vec::new();
            let frame = Frame { bp: Some(candidate), ..frame };
            let (end, _) = self.follow(modules, frame, stack, &mut callers);
            let Some(first) = callers.first().copied() else { continue };
            let follow_calls = callers.iter().all(|one| self.call(modules, *one).is_some());
            match end {
                End::Budget => return Walk { addresses, end, inferred: false },
                End::BeyondCopy if follow_calls => is_cut = true,
                End::Root if follow_calls => solutions.push((self.fit(modules, first, frame), callers)),
                _ => {}
            }
        }
        let best = solutions.iter().map(|(fit, _)| *fit).max();
        solutions.retain(|(fit, _)| Some(*fit) == best);
        let longest = solutions.iter().map(|(_, callers)| callers).max_by_key(|callers| callers.len());
        match longest {
            Some(longest) if solutions.iter().all(|(_, callers)| longest.ends_with(callers)) => {
                Walk { addresses: [&addresses[..], longest].concat(), end: End::Root, inferred: true }
            }
            _ if is_cut => Walk { addresses, end: End::BeyondCopy, inferred: false },
            _ => Walk { addresses, end: End::NoFramePointer, inferred: false },
        }
    }

    /// Infer the link register of the innermost frame: each call of its function is tried as its caller.
    ///
    /// A walk is a solution if it reaches the root and each of its return addresses follows a call instruction
    /// that fits. Calls in one function whose callers are the same count as one solution.
    fn infer_caller(
        &mut self,
        modules: &Modules,
        frame: Frame,
        stack: CopiedStack<'_>,
        addresses: Vec<u64>,
    ) -> Walk {
        let missing = Walk { addresses: addresses.clone(), end: End::NoLinkRegister, inferred: false };
        let Some(start) = self.function_start(modules, frame) else { return missing };
        let mut solutions: Vec<(Fit, Option<u64>, Vec<u64>)> = Vec::new();
        for site in self.sites(modules, start) {
            let mut callers = Vec::new();
            let frame = Frame { lr: Some(site), ..frame };
            let walk = match self.follow(modules, frame, stack, &mut callers) {
                (End::NoFramePointer, outer) => self.infer(modules, outer, stack, callers),
                (end, _) => Walk { addresses: callers, end, inferred: false },
            };
            if walk.end == End::Budget {
                return Walk { end: End::Budget, ..missing };
            }
            let follow_calls = walk.addresses.iter().all(|one| self.call(modules, *one).is_some());
            if walk.end != End::Root || !follow_calls {
                continue;
            }
            let caller = Frame { ip: site, innermost: false, ..frame };
            let fit = walk.addresses.get(1).map_or(Fit::Possible, |outer| self.fit(modules, *outer, caller));
            solutions.push((fit, self.function_start(modules, caller), walk.addresses));
        }
        let best = solutions.iter().map(|(fit, ..)| *fit).max();
        solutions.retain(|(fit, ..)| Some(*fit) == best && *fit != Fit::Unlikely);
        match &solutions[..] {
            [(_, function, first), others @ ..]
                if others
                    .iter()
                    .all(|(_, other, callers)| other == function && callers[1..] == first[1..]) =>
            {
                Walk { addresses: [&addresses[..], first].concat(), end: End::Root, inferred: true }
            }
            _ => missing,
        }
    }

    /// Return the addresses after all calls of the function at `start`, from the cache if possible.
    fn sites(&mut self, modules: &Modules, start: u64) -> Vec<u64> {
        if let Some(known) = self.sites.get(&start) {
            return known.clone();
        }
        let Some(index) = modules.at(start) else { return Vec::new() };
        let found = callers::of(modules, self.arch, index, start, &mut self.steps);
        if self.sites.len() >= MOST_LEAVES {
            self.sites.clear();
        }
        if self.steps > 0 {
            self.sites.insert(start, found.clone());
        }
        found
    }

    /// Return the address at which the function of a frame starts.
    fn function_start(&self, modules: &Modules, frame: Frame) -> Option<u64> {
        let index = modules.at(frame.lookup())?;
        let module = &modules.all()[index];
        let table = self.tables.get(index).and_then(Option::as_ref)?;
        Some(table.function_start(module.svma(frame.lookup()))?.wrapping_add(module.bias))
    }

    /// Return the call instruction before an address; None if the address cannot be a return address.
    fn call(&mut self, modules: &Modules, address: u64) -> Option<Call> {
        if let Some(known) = self.calls.get(&address) {
            return *known;
        }
        let call = modules.at(address.wrapping_sub(1)).and_then(|index| {
            let module = &modules.all()[index];
            let code = module.code_before(address, self.arch.call_bytes)?;
            (self.arch.decode_call)(&code, address)
        });
        if self.calls.len() >= limits::RULES {
            self.calls.clear();
        }
        self.calls.insert(address, call);
        call
    }

    /// Return how well the call before a return address fits the assumption that it called the function of
    /// `frame`.
    fn fit(&mut self, modules: &Modules, return_address: u64, frame: Frame) -> Fit {
        let Some(Call::Direct(target)) = self.call(modules, return_address) else { return Fit::Possible };
        let Some(index) = modules.at(frame.lookup()) else { return Fit::Unlikely };
        if self.function_start(modules, frame) == Some(target) {
            Fit::Certain
        } else if modules.at(target) == Some(index) {
            Fit::Unlikely
        } else {
            Fit::Possible
        }
    }

    /// Return the unwind rule for an address, or `None` if the steps are used up.
    fn rule(&mut self, modules: &Modules, index: usize, address: u64) -> Option<Rule> {
        self.steps = self.steps.saturating_sub(1);
        if self.steps == 0 {
            return None;
        }
        if let Some(known) = self.rules.get(&address) {
            return Some(*known);
        }
        let module = &modules.all()[index];
        let table = self.tables.get_mut(index)?;
        if table.is_none() {
            *table = Some(module.elf.as_ref().map_or_else(UnwindTable::none, |elf| UnwindTable::of(elf)));
        }
        let rule = table.as_mut()?.rule(module.svma(address), &mut self.steps);
        if self.rules.len() >= limits::RULES {
            self.rules.clear();
        }
        self.rules.insert(address, rule);
        Some(rule)
    }

    /// Return true if the function at this address has no caller: either its return address is marked
    /// undefined, or it is the program's entry point. A frame pointer of zero alone does not prove that.
    fn is_root(&mut self, modules: &Modules, address: u64) -> bool {
        let Some(index) = modules.at(address) else { return false };
        modules.all()[index].is_entry(address)
            || self.rule(modules, index, address).is_some_and(Rule::is_undefined)
    }
}
