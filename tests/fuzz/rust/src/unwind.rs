//! Unwinding with the unwind tables of a hostile file.
//!
//! The input is an ELF file, followed by registers (ip, sp, bp), a return address that a probe replaced, and
//! a stack.

use std::path::Path;

use _native::modules::Modules;
use _native::snapshot::Registers;
use _native::symbols::ElfFile;
use _native::unwind::Unwinder;

use super::within_limits;

const BIAS: u64 = 0x7f00_0000_0000;
const STACK_BASE: u64 = 0x7ffd_0000_1000;
const REGISTERS: usize = 4 * 8;
const STACK: usize = 512;

/// Unwind a stack.
pub fn run(data: &[u8]) {
    let Some((file, tail)) = data.split_at_checked(data.len().saturating_sub(REGISTERS + STACK))
    else {
        return;
    };
    if tail.len() < REGISTERS {
        return;
    }
    let (words, stack) = tail.split_at(REGISTERS);
    let word = |at: usize| u64::from_le_bytes(words[at * 8..][..8].try_into().expect("8 bytes"));
    within_limits(|| {
        let Ok(elf) = ElfFile::from_bytes(file.to_vec(), Path::new("fuzzed")) else {
            return;
        };
        let modules = Modules::fixed(vec![(elf, BIAS)]);
        let code = &modules.all()[0];
        let size = code.end.wrapping_sub(code.start).max(1);
        let in_code = |word: u64| code.start.wrapping_add(word % size);
        let mut unwinder = Unwinder::new(&modules);
        for ip in [in_code(word(0)), word(0)] {
            let registers = Registers {
                ip,
                sp: STACK_BASE.wrapping_add(word(1) & 0xff),
                bp: (word(2) != 0).then(|| STACK_BASE.wrapping_add(word(2) & 0x1ff)),
                lr: (word(1) & 1 != 0).then(|| in_code(word(2))),
            };
            // Map even words of the stack to code addresses, so that unwinding gets beyond the first frame.
            let stack: Vec<u8> = stack
                .chunks_exact(8)
                .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
                .flat_map(|word| if word & 1 == 0 { in_code(word) } else { word }.to_le_bytes())
                .collect();
            let _ = unwinder.walk(
                &modules,
                registers,
                &stack,
                &[(STACK_BASE, in_code(word(3)))],
            );
        }
    });
}
