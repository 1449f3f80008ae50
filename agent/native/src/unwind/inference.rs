//! Infers registers that the source could not read: the frame pointer from the words on the stack, and the
//! link register from the code that calls the function.

use super::{CopiedStack, End, Unwinder, Walk, callers};
use crate::arch::Call;
use crate::cfi::Frame;
use crate::modules::Modules;
use crate::symbols::limits;

/// Maximum number of functions whose calls are cached.
const MOST_LEAVES: usize = 64;

/// The likelihood that a call instruction called the function that is assumed to be its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// A direct call to another function in the same file, which may end with a jump to the assumed function.
    Unlikely,
    /// An indirect call, or a call to another file through the procedure linkage table (PLT).
    Possible,
    /// A direct call to the assumed function.
    Certain,
}

/// A possible walk from a function whose return address is in the unknown link register.
struct Solution {
    /// The fit of the caller's own return address.
    fit: Fit,
    /// The start of the calling function.
    function: Option<u64>,
    /// The return addresses, innermost first.
    callers: Vec<u64>,
}

/// Return true if all solutions have the same functions: they differ only in the position of the first call.
fn are_one(solutions: &[Solution]) -> bool {
    solutions
        .windows(2)
        .all(|pair| pair[0].function == pair[1].function && pair[0].callers[1..] == pair[1].callers[1..])
}

impl Unwinder {
    /// Infer the frame pointer at `frame`, which the walk reached through `addresses`.
    ///
    /// In a function whose caller is found by the frame pointer, the frame pointer is the address of a word on
    /// its stack. Therefore each word is tried. A walk is a solution if it reaches the root and each of its
    /// return addresses follows a call instruction. If there are several solutions, those whose first call best
    /// fits the function of `frame` are kept. The frames of outer callers yield solutions that skip some
    /// callers, so the longest solution is accepted if each other solution is a tail of it.
    pub(super) fn infer(
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

    /// Infer the link register of the innermost frame: each call to its function is tried as its caller.
    ///
    /// A walk is a solution if it reaches the root and each of its return addresses follows a call instruction
    /// that fits. Calls in one function whose callers are the same count as one solution.
    pub(super) fn infer_caller(
        &mut self,
        modules: &Modules,
        frame: Frame,
        stack: CopiedStack<'_>,
        addresses: &[u64],
    ) -> Walk {
        let missing = Walk { addresses: addresses.to_owned(), end: End::NoLinkRegister, inferred: false };
        let Some(start) = self.function_start(modules, frame) else { return missing };
        let mut solutions: Vec<Solution> = Vec::new();
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
            let function = self.function_start(modules, caller);
            solutions.push(Solution { fit, function, callers: walk.addresses });
        }
        let best = solutions.iter().map(|one| one.fit).max();
        solutions.retain(|one| Some(one.fit) == best && one.fit != Fit::Unlikely);
        if !are_one(&solutions) {
            // A call through a stub for imported functions fits any function in another file until the stub is
            // resolved.
            solutions.retain(|one| match (one.function, one.callers.get(1)) {
                (Some(function), Some(outer)) => self.sites(modules, function).contains(outer),
                _ => false,
            });
        }
        match solutions.first() {
            Some(first) if are_one(&solutions) => {
                let addresses = [addresses, &first.callers].concat();
                Walk { addresses, end: End::Root, inferred: true }
            }
            _ => missing,
        }
    }

    /// Return the addresses after all calls to the function at `start`, from the cache if possible.
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
}
