//! From registers and stack bytes to return addresses, offline, by `.eh_frame`.

use std::ops::Range;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{Error as StepError, FrameAddress, Module as Code, ModuleSectionInfo, Unwinder as _};
use gimli::{
    BaseAddresses, EhFrame, EhFrameHdr, LittleEndian, RegisterRule, UnwindContext, UnwindSection, X86_64,
};
use rustc_hash::FxHashMap;

use crate::modules::{Module, Modules};
use crate::snapshot::Registers;
use crate::symbols::{Bytes, ElfFile};

/// Deeper stacks than this are recursion out of hand, or bytes that lie.
const MAX_FRAMES: usize = 1024;

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
    code: UnwinderX86_64<Bytes>,
    cache: CacheX86_64,
    /// Whether a last address is in a function without a caller, by what its unwind information says.
    roots: FxHashMap<u64, bool>,
}

impl Unwinder {
    /// For the modules as they are; make a new one when they change.
    pub fn new(modules: &Modules) -> Self {
        let mut code = UnwinderX86_64::new();
        for module in modules.all() {
            if let Some(elf) = &module.elf {
                let addresses = module.start..module.end;
                code.add_module(Code::new(module.path.clone(), addresses, module.bias, Sections(elf)));
            }
        }
        Self { code, cache: CacheX86_64::new(), roots: FxHashMap::default() }
    }

    /// Walks from `registers` over `stack`, the bytes from the stack pointer upwards.
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
        let mut beyond = false;
        let mut read = |address: u64| -> Result<u64, ()> {
            let at = usize::try_from(address.checked_sub(bottom).ok_or(())?).map_err(|_| ())?;
            let bytes = at.checked_add(8).and_then(|end| stack.get(at..end));
            beyond = bytes.is_none();
            let word = bytes.and_then(|bytes| Some(u64::from_le_bytes(bytes.try_into().ok()?))).ok_or(())?;
            match returns.iter().find(|(slot, _)| *slot == address) {
                Some((_, real)) if modules.at(word).is_none() => Ok(*real),
                _ => Ok(word),
            }
        };
        let mut registers = UnwindRegsX86_64::new(ip, sp, bp);
        let mut addresses = vec![ip];
        let mut frame = FrameAddress::InstructionPointer(ip);
        let end = loop {
            // Outside of all code framehop would guess by frame pointer: rather say that it is lost.
            let Some(index) = modules.at(frame.address_for_lookup()) else {
                break End::Elsewhere;
            };
            if modules.all()[index].is_entry(frame.address_for_lookup()) {
                break End::Root;
            }
            if addresses.len() >= MAX_FRAMES {
                break End::Lost;
            }
            match self.code.unwind_frame(frame, &mut registers, &mut self.cache, &mut read) {
                Ok(Some(address)) => match FrameAddress::from_return_address(address) {
                    Some(next) => {
                        addresses.push(address);
                        frame = next;
                    }
                    None => break End::Lost,
                },
                Ok(None) => break End::Root,
                Err(StepError::CouldNotReadStack(_)) if beyond => break End::BeyondCopy,
                Err(_) => break End::Lost,
            }
        };
        let end = match end {
            End::Root if !self.is_root(modules, frame.address_for_lookup()) => End::Lost,
            End::BeyondCopy | End::Lost if self.is_root(modules, frame.address_for_lookup()) => End::Root,
            other => other,
        };
        Walk { addresses, end }
    }

    /// Whether the function at this address has no caller: its return address is marked undefined, or it is
    /// the program's entry. An end found by a zero frame pointer alone proves nothing.
    fn is_root(&mut self, modules: &Modules, address: u64) -> bool {
        if let Some(known) = self.roots.get(&address) {
            return *known;
        }
        let root = modules.at(address).is_some_and(|index| {
            let module = &modules.all()[index];
            module.is_entry(address)
                || return_address_undefined(module, module.svma(address)).unwrap_or(false)
        });
        self.roots.insert(address, root);
        root
    }
}

/// What framehop asks of a file. `.text` itself is kept back: with it framehop would guess at prologues.
struct Sections<'elf>(&'elf ElfFile);

impl ModuleSectionInfo<Bytes> for Sections<'_> {
    fn base_svma(&self) -> u64 {
        0
    }

    fn section_svma_range(&mut self, name: &[u8]) -> Option<Range<u64>> {
        Some(self.0.section(std::str::from_utf8(name).ok()?)?.svma)
    }

    fn section_data(&mut self, name: &[u8]) -> Option<Bytes> {
        if name == b".text" {
            return None;
        }
        Some(self.0.section(std::str::from_utf8(name).ok()?)?.data)
    }
}

/// What the unwind information of the file says of the caller of the function at `svma`.
fn return_address_undefined(module: &Module, svma: u64) -> Option<bool> {
    let elf = module.elf.as_ref()?;
    let frames = elf.section(".eh_frame")?;
    let mut bases = BaseAddresses::default().set_eh_frame(frames.svma.start);
    if let Some(text) = elf.section(".text") {
        bases = bases.set_text(text.svma.start);
    }
    let section = EhFrame::new(&frames.data, LittleEndian);
    let mut context = UnwindContext::new();
    let row = match elf.section(".eh_frame_hdr") {
        Some(header) => {
            let bases = bases.clone().set_eh_frame_hdr(header.svma.start);
            let parsed = EhFrameHdr::new(&header.data, LittleEndian).parse(&bases, 8).ok()?;
            let entry =
                parsed.table()?.fde_for_address(&section, &bases, svma, EhFrame::cie_from_offset).ok()?;
            entry.unwind_info_for_address(&section, &bases, &mut context, svma).ok()?.clone()
        }
        None => section
            .unwind_info_for_address(&bases, &mut context, svma, EhFrame::cie_from_offset)
            .ok()?
            .clone(),
    };
    Some(row.register(X86_64::RA) == Some(RegisterRule::Undefined))
}
