//! Offline unwinding: converts registers and stack bytes to return addresses, using `.eh_frame`.
//!
//! The mapped files belong to the observed process and may be hostile, so they must not determine how long
//! unwinding takes. Entries and expressions have limits ([`limits`]), and all walks of one snapshot share a
//! budget of steps.

mod callers;
mod inference;

use rustc_hash::FxHashMap;

use crate::arch::{Arch, Call, NATIVE};
use crate::cfi::{self, Caller, Frame, Memory, Rule, UnwindTable};
use crate::modules::Modules;
use crate::snapshot::Registers;
use crate::symbols::limits;

/// The reason why a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The walk reached a function that has no caller: `_start`, or the start function of a thread.
    Root,
    /// The stack continues above the bytes that were copied.
    BeyondCopy,
    /// The walk reached an address outside all known modules: code that was mapped later, or no code at all.
    OutsideModules,
    /// No caller could be found for an address inside a module, or the stack has more than [`limits::FRAMES`]
    /// frames.
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
    /// True if a caller was inferred: the frame pointer or the link register was unknown, or the unwind table
    /// could not be used.
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

    /// Return the return address in a caller's frame or, if a return probe replaced it, the original address.
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
    /// Cached calls to functions that leave their return address in the link register: the addresses after
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

    /// Create an unwinder for the changed modules, with the remaining budget of steps.
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

    /// Unwind a stack, starting at `registers`; `stack` contains its bytes from the stack pointer upward.
    ///
    /// `returns` lists the return addresses that return probes (uretprobes) replaced, as (stack address,
    /// original return address), innermost first. Where a return address points to the kernel's `[uprobes]` page
    /// instead of the code of a module, the original address is used.
    ///
    /// If a caller depends on the frame pointer or the link register, and `registers` does not contain it, the
    /// register is inferred; see [`Unwinder::infer`] and [`Unwinder::infer_caller`].
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
        let frame = Frame { ip, sp, bp, lr, innermost: true, guessed: false };
        match self.follow(modules, frame, stack, &mut addresses) {
            (End::NoFramePointer, frame) => self.infer(modules, frame, stack, addresses),
            (End::NoLinkRegister, frame) => self.infer_caller(modules, frame, stack, &addresses),
            (end, outermost) => Walk { addresses, end, inferred: outermost.guessed },
        }
    }

    /// Return the limits that the unwind tables of modules exceeded, each with the file's path.
    pub fn problems<'a>(&'a self, modules: &'a Modules) -> impl Iterator<Item = String> + 'a {
        self.tables.iter().zip(modules.all()).filter_map(|(table, module)| {
            let problem = table.as_ref()?.problem()?;
            Some(format!("{}: {problem}, so callers may be missing or wrong", module.path))
        })
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
