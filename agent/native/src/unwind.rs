//! Offline unwinding: converts registers and stack bytes to return addresses, using `.eh_frame`.
//!
//! The mapped files belong to the observed process and may be hostile, so they must not determine how long
//! unwinding takes. Entries and expressions have limits ([`limits`]), and all walks of one snapshot share a
//! budget of steps.

use rustc_hash::FxHashMap;

use crate::cfi::{Caller, Frame, Memory, Rule, UnwindTable};
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
    /// The walk reached an address outside all known modules, in code that was mapped later or not in code.
    OutsideModules,
    /// No caller could be found for an address inside a module.
    Lost,
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
}

/// Unwinds the threads of one process.
pub struct Unwinder {
    /// The tables, in the order of the modules. Each table is read when the first address in its module is
    /// unwound.
    tables: Vec<Option<UnwindTable>>,
    /// Cached unwind rules by address.
    rules: FxHashMap<u64, Rule>,
    steps: u64,
}

impl Unwinder {
    /// Create an unwinder for the current modules; call [`Unwinder::renewed`] when they change.
    pub fn new(modules: &Modules) -> Self {
        let tables = modules.all().iter().map(|_| None).collect();
        Self { tables, rules: FxHashMap::default(), steps: limits::STEPS }
    }

    /// Create an unwinder for changed modules that continues with the remaining steps.
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
    /// `returns` lists the return addresses that return probes (uretprobes) replaced, as (stack slot,
    /// original address), innermost first. If a stack word points to the kernel's `[uprobes]` page and not to
    /// code of a module, the original address is used.
    pub fn walk(
        &mut self,
        modules: &Modules,
        registers: Registers,
        stack: &[u8],
        returns: &[(u64, u64)],
    ) -> Walk {
        let Registers { ip, sp: bottom, bp } = registers;
        let (ip, sp) = match returns.first() {
            // The thread is in the [uprobes] page: the call has returned, but the probe has not yet jumped to
            // the caller.
            Some((slot, address)) if modules.at(ip).is_none() => (*address, slot.wrapping_add(8)),
            _ => (ip, bottom),
        };
        let mut memory = Memory {
            beyond: false,
            read: |address: u64| {
                let at = usize::try_from(address.checked_sub(bottom)?).ok()?;
                let word = u64::from_le_bytes(*stack.get(at..)?.first_chunk()?);
                match returns.iter().find(|(slot, _)| *slot == address) {
                    Some((_, real)) if modules.at(word).is_none() => Some(*real),
                    _ => Some(word),
                }
            },
        };
        let mut addresses = vec![ip];
        let mut frame = Frame { ip, sp, bp, innermost: true };
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
            match rule.caller(table, frame, &mut memory, &mut self.steps) {
                Some(Caller::At(caller)) => {
                    addresses.push(caller.ip);
                    frame = caller;
                }
                Some(Caller::Top) => break End::Root,
                None if memory.beyond => break End::BeyondCopy,
                None => break End::Lost,
            }
        };
        let end = match end {
            End::Root if !self.is_root(modules, frame.lookup()) => End::Lost,
            End::BeyondCopy | End::Lost if self.is_root(modules, frame.lookup()) => End::Root,
            other => other,
        };
        Walk { addresses, end }
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
    /// undefined, or it is the program's entry point. A zero frame pointer alone does not prove that.
    fn is_root(&mut self, modules: &Modules, address: u64) -> bool {
        let Some(index) = modules.at(address) else { return false };
        modules.all()[index].is_entry(address)
            || self.rule(modules, index, address).is_some_and(Rule::is_undefined)
    }
}
