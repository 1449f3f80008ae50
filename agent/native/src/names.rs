//! Converts stacks of addresses to stacks of function names; each distinct stack is resolved once.

mod shared;

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::modules::Modules;
use crate::stack_budget::{self, Limit, Share};
use crate::symbols::{Kallsyms, demangle, limits};
use shared::SharedNames;

/// One function on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The demangled name without parameters, or None if no symbol covers the address. Names longer than
    /// [`limits::SHOWN_NAME`] characters end with an ellipsis.
    pub function: Option<Arc<str>>,
    /// The base name of the file.
    pub module: Arc<str>,
    /// The ELF virtual address, or the address itself for the kernel and unknown code.
    pub offset: u64,
    /// True if the compiler inlined the function into the next frame.
    pub inlined: bool,
    /// True for a function of the kernel.
    pub kernel: bool,
}

/// Maximum number of cached addresses. If it is exceeded, clearing the stacks also drops all addresses.
const MAX_CACHED_ADDRESSES: usize = 1_000;

/// A cache of the frames at each address.
pub struct AddressNames {
    inlines: bool,
    kallsyms: Option<Kallsyms>,
    frames: FxHashMap<u64, Arc<Vec<Frame>>>,
    shared: SharedNames,
    /// The module name of the kernel's frames.
    kernel: Arc<str>,
    /// The name of the module of addresses outside all modules.
    unknown: Arc<str>,
}

impl AddressNames {
    /// Create an empty cache. `inlines` adds the calls that the compiler inlined, and `kernel` loads the
    /// kernel's symbols.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        let kallsyms = if kernel { Kallsyms::load().ok() } else { None };
        Self {
            inlines,
            kallsyms,
            frames: FxHashMap::default(),
            shared: SharedNames::new(&stack_budget::NAMES),
            kernel: "kernel".into(),
            unknown: "?".into(),
        }
    }

    /// Return the frames at an address, inlined calls first. An address is a return address unless it is
    /// `innermost`.
    pub fn at(&mut self, modules: &Modules, address: u64, innermost: bool) -> &Arc<Vec<Frame>> {
        // A return address may already belong to the next function, so look up the call instruction before
        // it.
        let lookup = if innermost { address } else { address.wrapping_sub(1) };
        let (shared, unknown, inlines) = (&mut self.shared, &self.unknown, self.inlines);
        let named = self.frames.entry(lookup);
        named.or_insert_with(|| match modules.at(lookup) {
            Some(index) => Arc::new(resolve(modules, index, shared, address, lookup, inlines)),
            None => Arc::new(vec![Frame {
                function: None,
                module: Arc::clone(unknown),
                offset: address,
                inlined: false,
                kernel: false,
            }]),
        })
    }

    /// Return the frame of a kernel address.
    pub fn in_kernel(&mut self, address: u64) -> Frame {
        let function = self.kallsyms.as_ref().and_then(|names| names.lookup(address));
        Frame {
            function: function.map(|(name, _)| self.shared.share(&name)),
            module: Arc::clone(&self.kernel),
            offset: address,
            inlined: false,
            kernel: true,
        }
    }

    /// Return a message if a limit was reached and function names are therefore omitted. The text is the same
    /// after each snapshot, because consumers list each distinct note once.
    pub fn problem(&self) -> Option<String> {
        let owner = match self.shared.reached? {
            Limit::OfProcess => {
                format!("in the stacks of this process exceed {} bytes", limits::SHOWN_NAMES_BYTES)
            }
            Limit::Shared => {
                format!("of all processes exceed the {} bytes that they share", limits::SHOWN_NAMES_SHARED)
            }
        };
        Some(format!("functions are shown without names: the names of the functions {owner}"))
    }

    /// Return true if names of functions were omitted, although there is room for them again.
    pub fn can_grow_again(&self) -> bool {
        self.shared.can_grow_again()
    }

    /// Return the number of cached addresses.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Return true if nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Clear the cache: when the modules have changed, when it takes too much memory, or when functions whose
    /// names were omitted can be resolved again.
    pub fn clear(&mut self) {
        self.frames.clear();
        self.shared.reached = None;
    }
}

/// A stack: the user addresses and the kernel addresses, each innermost first.
pub type Addresses = (Vec<u64>, Vec<u64>);

/// A cache of distinct stacks, by id. Ids are never reused.
pub struct StackNames {
    names: AddressNames,
    ids: FxHashMap<Arc<Addresses>, u32>,
    stacks: FxHashMap<u32, Arc<Vec<Frame>>>,
    next_id: u32,
    /// The frames of the cached stacks.
    frames: Share,
    /// The id of the empty stack that replaces the stacks for which there is no room, and the limit that was reached.
    dropped: Option<(u32, Limit)>,
}

impl StackNames {
    /// Create an empty cache; see [`AddressNames::new`] for the arguments.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        Self {
            names: AddressNames::new(inlines, kernel),
            ids: FxHashMap::default(),
            stacks: FxHashMap::default(),
            next_id: 0,
            frames: Share::new(&stack_budget::FRAMES),
            dropped: None,
        }
    }

    /// Return the number of cached stacks.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Return true if nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Return the number of frames of the cached stacks.
    pub fn frames(&self) -> usize {
        self.frames.used()
    }

    /// Return a message for each limit that was reached. The texts are the same in each snapshot.
    pub fn problems(&self) -> impl Iterator<Item = String> {
        let stacks = self.dropped.map(|(_, limit)| {
            let owner = match limit {
                Limit::OfProcess => format!("this process have more than {} frames", limits::STACK_FRAMES),
                Limit::Shared => {
                    format!("all processes exceed the {} frames that they share", limits::STACK_FRAMES_SHARED)
                }
            };
            format!("some stacks are missing and marked truncated: the distinct stacks of {owner}")
        });
        self.names.problem().into_iter().chain(stacks)
    }

    /// Return true if this is the id of the stacks for which there was no room.
    pub fn is_dropped(&self, id: u32) -> bool {
        self.dropped.is_some_and(|(dropped, _)| dropped == id)
    }

    /// Return true if stacks were dropped, or if names of functions were omitted for which there is room
    /// again.
    pub fn is_incomplete(&self) -> bool {
        self.dropped.is_some() || self.names.can_grow_again()
    }

    /// Drop the cached stacks to limit memory. Addresses stay cached unless there are too many, or names of
    /// functions were omitted for which there is room again.
    pub fn clear_stacks(&mut self) {
        self.ids.clear();
        self.stacks.clear();
        self.frames.clear();
        self.dropped = None;
        if self.names.len() > MAX_CACHED_ADDRESSES || self.names.can_grow_again() {
            self.names.clear();
        }
    }

    /// Drop everything. This is needed after the modules have changed.
    pub fn clear(&mut self) {
        self.clear_stacks();
        self.names.clear();
    }

    /// Return the frames of a stack, innermost first.
    pub fn get(&self, id: u32) -> Option<&Arc<Vec<Frame>>> {
        self.stacks.get(&id)
    }

    /// Return the id of a stack, and one copy of its addresses, shared by all threads with this stack. If the
    /// stack is new, resolve its frames. If the budget of frames is used up, a new stack is replaced by one that is
    /// empty ([`StackNames::is_dropped`]).
    pub fn intern(&mut self, modules: &Modules, stack: Addresses) -> (u32, Arc<Addresses>) {
        if let Some((shared, id)) = self.ids.get_key_value(&stack) {
            return (*id, Arc::clone(shared));
        }
        if let Some(limit) = self.frames.exhausted() {
            return (self.dropped_id(limit), Arc::default());
        }
        let (addresses, kernel) = &stack;
        let mut frames: Vec<Frame> = kernel.iter().map(|address| self.names.in_kernel(*address)).collect();
        for (depth, address) in addresses.iter().enumerate() {
            frames.extend(self.names.at(modules, *address, depth == 0).iter().cloned());
        }
        self.frames.add(frames.len());
        let id = self.insert(frames);
        let shared = Arc::new(stack);
        self.ids.insert(Arc::clone(&shared), id);
        (id, shared)
    }

    fn dropped_id(&mut self, limit: Limit) -> u32 {
        if let Some((id, _)) = self.dropped {
            return id;
        }
        let id = self.insert(Vec::new());
        self.dropped = Some((id, limit));
        id
    }

    fn insert(&mut self, frames: Vec<Frame>) -> u32 {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        self.stacks.insert(id, Arc::new(frames));
        id
    }
}

/// Resolve the frames of one address in a module: the inlined functions first, then the function that contains them.
fn resolve(
    modules: &Modules,
    index: usize,
    names: &mut SharedNames,
    address: u64,
    lookup: u64,
    inlines: bool,
) -> Vec<Frame> {
    let module = &modules.all()[index];
    let svma = module.svma(lookup);
    let calls = if inlines { modules.inlined(index, svma) } else { Vec::new() };
    let offset = module.svma(address);
    let frame = |function, inlined| Frame {
        function,
        module: Arc::clone(&module.name),
        offset,
        inlined,
        kernel: false,
    };
    let mut frames: Vec<Frame> =
        calls.iter().map(|function| frame(names.share_function(function), true)).collect();
    let symbol = module.symbols.lookup(svma).map(|symbol| demangle(symbol.name));
    // In old C libraries the entry function has no size, so no symbol covers the address.
    let function = symbol.or_else(|| module.is_entry(lookup).then(|| "_start".to_owned()));
    frames.push(frame(function.and_then(|name| names.share_function(&name)), false));
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frames_of_many_processes_are_limited_and_dropped_stacks_have_a_note() {
        let modules = Modules::fixed(Vec::new());
        let mut processes: Vec<StackNames> = (0..64).map(|_| StackNames::new(false, false)).collect();
        for (number, names) in processes.iter_mut().enumerate() {
            for stack in 0..300_u64 {
                let first = (number as u64) << 32 | stack << 16;
                names.intern(&modules, ((first..first + 100).collect(), Vec::new()));
            }
        }
        let total: usize = processes.iter().map(StackNames::frames).sum();
        let most = 64 * (limits::STACK_FRAMES_RESERVED + 100) + limits::STACK_FRAMES_SHARED;
        assert!(total <= most, "{total}");
        let last = &mut processes[63];
        assert!(last.is_incomplete() && last.frames() >= limits::STACK_FRAMES_RESERVED);
        assert!(last.problems().next().unwrap().contains("of all processes exceed the 200000 frames"));
        last.clear_stacks();
        assert!(!last.is_incomplete() && last.problems().next().is_none());
        let (id, _) = last.intern(&modules, (vec![1], Vec::new()));
        assert!(!last.is_dropped(id));
    }
}
