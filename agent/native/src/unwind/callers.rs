//! Finds the direct calls to a function in the code of all modules.
//!
//! This is needed for functions that leave their return address in the link register, if the source cannot
//! read that register.

use rustc_hash::FxHashSet;

use crate::arch::{Arch, Call, FindStubs};
use crate::modules::Modules;
use crate::symbols::ElfFile;

/// Number of bytes of a section that are read into memory at a time.
const PIECE: u64 = 4 << 20;
/// Number of code bytes that are searched for one step of the unwinder's budget.
const BYTES_PER_STEP: u64 = 64;
/// Maximum number of calls that are returned. Further calls are ignored, because trying more callers would take
/// too long.
const MOST: usize = 4096;

/// Return the addresses after all calls to the function that starts at `start`, which is in the module with
/// this index. A call may go through a stub for imported functions.
pub(super) fn of(modules: &Modules, arch: &Arch, index: usize, start: u64, steps: &mut u64) -> Vec<u64> {
    let Some(stubs) = arch.import_stubs else { return Vec::new() };
    let module = &modules.all()[index];
    let Some(own) = module.elf.as_ref() else { return Vec::new() };
    let names = own.exported_names(module.svma(start));
    let mut found = Vec::new();
    for (at, module) in modules.all().iter().enumerate() {
        let Some(elf) = module.elf.as_ref() else { continue };
        let mut targets = imports(elf, &names, stubs);
        if at == index {
            targets.insert(module.svma(start));
        }
        if !targets.is_empty() && found.len() < MOST {
            let calls = calls(elf, arch, &targets, steps);
            found.extend(calls.into_iter().map(|svma| svma.wrapping_add(module.bias)));
        }
    }
    found.truncate(MOST);
    found
}

/// Return the stubs of the file that jump to an imported function with one of these names.
fn imports(elf: &ElfFile, names: &FxHashSet<String>, stubs: FindStubs) -> FxHashSet<u64> {
    let slots = if names.is_empty() { FxHashSet::default() } else { elf.import_slots(names) };
    let Some(section) = elf.section(".plt").filter(|_| !slots.is_empty()) else {
        return FxHashSet::default();
    };
    let all = stubs(&section.data, section.svma.start);
    all.into_iter().filter(|stub| slots.contains(&stub.slot)).map(|stub| stub.address).collect()
}

/// Return the ELF virtual addresses after all direct calls to these functions.
fn calls(elf: &ElfFile, arch: &Arch, targets: &FxHashSet<u64>, steps: &mut u64) -> Vec<u64> {
    let mut found = Vec::new();
    for section in elf.loaded_sections().unwrap_or_default().iter().filter(|section| section.code) {
        section.scan(PIECE, 0, |at, bytes| {
            *steps = steps.saturating_sub(bytes.len() as u64 / BYTES_PER_STEP);
            if *steps == 0 {
                return;
            }
            let mut next = section.start.wrapping_add(at);
            for code in bytes.chunks_exact(arch.call_bytes) {
                next = next.wrapping_add(arch.call_bytes as u64);
                if let Some(Call::Direct(target)) = (arch.decode_call)(code, next)
                    && targets.contains(&target)
                    && found.len() < MOST
                {
                    found.push(next);
                }
            }
        });
    }
    found
}
