//! Stacks of addresses to stacks of names, each distinct one once.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::modules::Modules;
use crate::symbols::{Kallsyms, demangle};

/// One function on a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

/// Distinct addresses whose names are kept when stacks are dropped.
const ADDRESSES_KEPT: usize = 2_000;

/// The names of addresses, each looked up once.
pub struct AddressNames {
    inlines: bool,
    kallsyms: Option<Kallsyms>,
    frames: FxHashMap<u64, Arc<Vec<Frame>>>,
}

impl AddressNames {
    /// `inlines` adds the calls that the compiler inlined, `kernel` loads the kernel's symbols.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        let kallsyms = if kernel { Kallsyms::load().ok() } else { None };
        Self { inlines, kallsyms, frames: FxHashMap::default() }
    }

    /// The frames at one address: inlined calls first. All but the innermost are return addresses.
    pub fn at(&mut self, modules: &Modules, address: u64, innermost: bool) -> &Arc<Vec<Frame>> {
        // A return address belongs to the call before it.
        let lookup = if innermost { address } else { address.wrapping_sub(1) };
        let named = self.frames.entry(lookup);
        named.or_insert_with(|| Arc::new(name(modules, address, lookup, self.inlines)))
    }

    /// The kernel's function at one address.
    pub fn in_kernel(&self, address: u64) -> Frame {
        kernel_frame(self.kallsyms.as_ref(), address)
    }

    /// Distinct addresses kept.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Drops all, because the modules changed or memory is to stay flat.
    pub fn forget(&mut self) {
        self.frames.clear();
    }
}

/// A stack: the process's addresses and the kernel's, each innermost first.
pub type Addresses = (Vec<u64>, Vec<u64>);

/// The stacks seen so far, by an id that is never used again.
pub struct StackNames {
    names: AddressNames,
    ids: FxHashMap<Arc<Addresses>, u32>,
    stacks: FxHashMap<u32, Arc<Vec<Frame>>>,
    next_id: u32,
}

impl StackNames {
    /// As `AddressNames::new`.
    pub fn new(inlines: bool, kernel: bool) -> Self {
        Self {
            names: AddressNames::new(inlines, kernel),
            ids: FxHashMap::default(),
            stacks: FxHashMap::default(),
            next_id: 0,
        }
    }

    /// Distinct stacks kept.
    pub fn len(&self) -> usize {
        self.stacks.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.stacks.is_empty()
    }

    /// Drops the stacks, so that memory stays flat. Names of addresses are kept while they are few.
    pub fn forget_stacks(&mut self) {
        self.ids.clear();
        self.stacks.clear();
        if self.names.len() > ADDRESSES_KEPT {
            self.names.forget();
        }
    }

    /// Drops all, because the modules changed.
    pub fn forget(&mut self) {
        self.ids.clear();
        self.stacks.clear();
        self.names.forget();
    }

    /// The frames of a stack, innermost first.
    pub fn get(&self, id: u32) -> Option<&Arc<Vec<Frame>>> {
        self.stacks.get(&id)
    }

    /// The id of a stack, and its addresses, which all threads with this stack share; a new one is named.
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
