//! From registers and stack bytes to return addresses, offline, by `.eh_frame`.
//!
//! The files belong to the observed process, so nothing in them decides how long a walk takes: entries and
//! expressions have limits ([`limits`]), and the walks of one snapshot share a number of steps.

use rustc_hash::FxHashMap;

use crate::cfi::{Caller, Frame, Memory, Rule, UnwindTable};
use crate::modules::Modules;
use crate::snapshot::Registers;
use crate::symbols::limits;

/// How a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// At a function that has no caller: `_start`, or where a thread begins.
    Root,
    /// The stack goes on above the bytes that were copied.
    BeyondCopy,
    /// At an address that no module covers: code that was mapped since, or no code at all.
    Elsewhere,
    /// At an address that cannot be unwound from.
    Lost,
    /// The steps of this snapshot were used up.
    Budget,
}

/// One unwound stack.
#[derive(Debug, Clone)]
pub struct Walk {
    /// The instruction pointer, then return addresses, innermost first.
    pub addresses: Vec<u64>,
    /// How it ended.
    pub end: End,
}

/// Unwinds the threads of one process.
pub struct Unwinder {
    /// In the order of the modules, each made when the first address in it is met.
    tables: Vec<Option<UnwindTable>>,
    /// What to do at an address, for those met before.
    rules: FxHashMap<u64, Rule>,
    steps: u64,
}

impl Unwinder {
    /// For the modules as they are; make a new one when they change.
    pub fn new(modules: &Modules) -> Self {
        let tables = modules.all().iter().map(|_| None).collect();
        Self { tables, rules: FxHashMap::default(), steps: limits::STEPS }
    }

    /// As [`Unwinder::new`], with the steps that are left.
    #[must_use]
    pub fn renewed(&self, modules: &Modules) -> Self {
        Self { steps: self.steps, ..Self::new(modules) }
    }

    /// Allow another snapshot's steps.
    pub fn refill(&mut self) {
        self.steps = limits::STEPS;
    }

    /// Whether the steps of this snapshot are used up.
    pub fn is_exhausted(&self) -> bool {
        self.steps == 0
    }

    /// Walk from `registers` over `stack`, the bytes from the stack pointer upwards.
    ///
    /// `returns` are the return addresses that return probes replaced (slot, address), innermost first: where the
    /// stack leads to no code, into the kernel's `[uprobes]` page, they say where it went before.
    pub fn walk(
        &mut self,
        modules: &Modules,
        registers: Registers,
        stack: &[u8],
        returns: &[(u64, u64)],
    ) -> Walk {
        let Registers { ip, sp: bottom, bp } = registers;
        let (ip, sp) = match returns.first() {
            // Caught on its way back: the call is over, the thread not yet where it returns to.
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
            // Outside of all code only the frame pointer could lead on, by a guess: rather say that it is lost.
            let Some(index) = modules.at(frame.lookup()) else {
                break End::Elsewhere;
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

    /// The rule at an address; `None` when the steps are used up.
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

    /// Whether the function at this address has no caller: its return address is marked undefined, or it is
    /// the program's entry. An end found by a zero frame pointer alone proves nothing.
    fn is_root(&mut self, modules: &Modules, address: u64) -> bool {
        let Some(index) = modules.at(address) else { return false };
        modules.all()[index].is_entry(address)
            || self.rule(modules, index, address).is_some_and(Rule::is_undefined)
    }
}
