//! Converts stacks of addresses to stacks of function names; each distinct stack is resolved once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::modules::Modules;
use crate::symbols::{Kallsyms, demangle};

/// One function on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The demangled name without parameters, or None if no symbol covers the address.
    pub function: Option<String>,
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
}

impl AddressNames {
    /// Create an empty cache. `inlines` adds the calls that the compiler inlined, and `kernel` loads the
    /// kernel's symbols.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        let kallsyms = if kernel { Kallsyms::load().ok() } else { None };
        Self { inlines, kallsyms, frames: FxHashMap::default() }
    }

    /// Return the frames at an address, inlined calls first. An address is a return address unless it is
    /// `innermost`.
    pub fn at(&mut self, modules: &Modules, address: u64, innermost: bool) -> &Arc<Vec<Frame>> {
        // A return address may already belong to the next function, so look up the call instruction before
        // it.
        let lookup = if innermost { address } else { address.wrapping_sub(1) };
        let named = self.frames.entry(lookup);
        named.or_insert_with(|| Arc::new(resolve(modules, address, lookup, self.inlines)))
    }

    /// Return the frame of a kernel address.
    pub fn in_kernel(&self, address: u64) -> Frame {
        kernel_frame(self.kallsyms.as_ref(), address)
    }

    /// Return the number of cached addresses.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Return true if nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Clear the cache. This is needed after the modules have changed, and to limit memory.
    pub fn clear(&mut self) {
        self.frames.clear();
    }
}

/// A stack: the user addresses and the kernel addresses, each innermost first.
pub type Addresses = (Vec<u64>, Vec<u64>);

/// The distinct stacks seen so far, by id. Ids are never reused.
pub struct StackNames {
    names: AddressNames,
    ids: FxHashMap<Arc<Addresses>, u32>,
    stacks: FxHashMap<u32, Arc<Vec<Frame>>>,
    next_id: u32,
}

impl StackNames {
    /// Create an empty cache; see [`AddressNames::new`] for the arguments.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        Self {
            names: AddressNames::new(inlines, kernel),
            ids: FxHashMap::default(),
            stacks: FxHashMap::default(),
            next_id: 0,
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

    /// Drop the cached stacks to limit memory. Addresses stay cached unless there are too many.
    pub fn clear_stacks(&mut self) {
        self.ids.clear();
        self.stacks.clear();
        if self.names.len() > MAX_CACHED_ADDRESSES {
            self.names.clear();
        }
    }

    /// Drop everything. This is needed after the modules have changed.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.stacks.clear();
        self.names.clear();
    }

    /// Return the frames of a stack, innermost first.
    pub fn get(&self, id: u32) -> Option<&Arc<Vec<Frame>>> {
        self.stacks.get(&id)
    }

    /// Return the id of a stack, and one copy of its addresses, shared by all threads with this stack. If the
    /// stack is new, resolve its frames.
    pub fn intern(&mut self, modules: &Modules, stack: Addresses) -> (u32, Arc<Addresses>) {
        if let Some((shared, id)) = self.ids.get_key_value(&stack) {
            return (*id, Arc::clone(shared));
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let (addresses, kernel) = &stack;
        let mut frames: Vec<Frame> = kernel.iter().map(|address| self.names.in_kernel(*address)).collect();
        for (depth, address) in addresses.iter().enumerate() {
            frames.extend(self.names.at(modules, *address, depth == 0).iter().cloned());
        }
        let shared = Arc::new(stack);
        self.ids.insert(Arc::clone(&shared), id);
        self.stacks.insert(id, Arc::new(frames));
        (id, shared)
    }
}

/// Resolve the frames of one address: the inlined functions first, then the function that contains them.
fn resolve(modules: &Modules, address: u64, lookup: u64, inlines: bool) -> Vec<Frame> {
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
    // In old C libraries the entry function has no size, so no symbol covers the address.
    let function = symbol.or_else(|| module.is_entry(lookup).then(|| "_start".to_owned()));
    frames.push(frame(function, false));
    frames
}

fn kernel_frame(kallsyms: Option<&Kallsyms>, address: u64) -> Frame {
    let function = kallsyms.and_then(|names| names.lookup(address)).map(|(name, _)| name);
    Frame { function, module: "kernel".into(), offset: address, inlined: false, kernel: true }
}
