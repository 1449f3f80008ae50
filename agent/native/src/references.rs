//! Checks whether anything in a file still calls a function. Link-time optimization leaves exported copies
//! that nothing calls: a probe can be attached to such a copy, but never fires.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::symbols::ElfFile;

/// A function: its addresses, and the number of references to it from outside its body.
#[derive(Debug, Clone)]
struct Target {
    body: Range<u64>,
    references: u32,
}

/// Count the references to each function, given as (ELF virtual address, size in bytes), from code and data
/// of an x86-64 file.
///
/// References are calls, jumps, addresses taken in code, pointers in data, and relocations. A function's
/// references to itself do not count. Return `None` for other architectures, and for a file that is too
/// large to scan.
///
/// Code is not disassembled. Instead, each position is tested as if it were the operand of a call, jump or
/// address load whose opcode precedes it. This finds all references, plus about one false reference per 10^5
/// functions.
pub fn count(elf: &ElfFile, functions: &[(u64, u64)]) -> Option<Vec<u32>> {
    if elf.machine() != "x86_64" {
        return None;
    }
    let mut search = Search::new(functions);
    for section in elf.loaded_sections()? {
        if section.code {
            let overlap = WINDOW as u64 - 1;
            section.scan(PIECE, overlap, |at, bytes| search.code(section.start.wrapping_add(at), bytes));
        } else {
            section.scan(PIECE, 0, |_, bytes| search.data(bytes));
        }
    }
    for address in elf.relocated_symbols() {
        search.refer(address, None);
    }
    Some(functions.iter().map(|(address, _)| search.targets[address].references).collect())
}

struct Search {
    targets: FxHashMap<u64, Target>,
    /// A bit set indexed by a hash of each target's address, which rejects nearly all positions.
    filter: Vec<u64>,
}

const FILTER_BITS: u32 = 16;
/// Number of code bytes that are examined together: up to three opcode bytes and four operand bytes.
const WINDOW: usize = 7;
/// Number of bytes of a section that are read into memory at a time.
const PIECE: u64 = 4 << 20;

fn hash(address: u64) -> usize {
    (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - FILTER_BITS)) as usize
}

impl Search {
    fn new(functions: &[(u64, u64)]) -> Self {
        let mut targets = FxHashMap::default();
        let mut filter = vec![0; 1 << (FILTER_BITS - 6)];
        for (address, size) in functions {
            let body = *address..address.saturating_add((*size).max(1));
            targets.insert(*address, Target { body, references: 0 });
            filter[hash(*address) / 64] |= 1 << (hash(*address) % 64);
        }
        Self { targets, filter }
    }

    fn refer(&mut self, to: u64, from: Option<u64>) {
        if self.filter[hash(to) / 64] >> (hash(to) % 64) & 1 == 0 {
            return;
        }
        if let Some(target) = self.targets.get_mut(&to)
            && !from.is_some_and(|from| target.body.contains(&from))
        {
            target.references += 1;
        }
    }

    fn code(&mut self, start: u64, bytes: &[u8]) {
        for (at, window) in bytes.windows(WINDOW).enumerate() {
            let [before3, before2, before, operand @ ..] =
                <[u8; WINDOW]>::try_from(window).expect("a window");
            let here = start.wrapping_add(at as u64 + 3);
            let value = i32::from_le_bytes(operand);
            if is_relative(before2, before) {
                let next = here.wrapping_add(4);
                self.refer(next.wrapping_add_signed(value.into()), Some(here));
            } else if is_absolute(before3, before2, before) {
                self.refer(u64::from(value.cast_unsigned()), Some(here));
            }
        }
    }

    /// Count pointers in data. A relocated pointer's target is stored in the addend of its relocation entry;
    /// relocation entries are scanned as data too, so these targets are counted.
    fn data(&mut self, bytes: &[u8]) {
        let (words, _) = bytes.as_chunks::<8>();
        for word in words {
            self.refer(u64::from_le_bytes(*word), None);
        }
    }
}

/// Return true for opcodes whose operand is relative to the next instruction: call, jmp, jcc, RIP-relative
/// lea.
fn is_relative(before2: u8, before: u8) -> bool {
    matches!(before, 0xe8 | 0xe9)
        || (before2 == 0x0f && before & 0xf0 == 0x80)
        || (before2 == 0x8d && before & 0xc7 == 0x05)
}

/// Return true for opcodes with a 32-bit immediate operand (mov, push). In a program that is not
/// position-independent, the operand may be an address.
fn is_absolute(before3: u8, before2: u8, before: u8) -> bool {
    before & 0xf8 == 0xb8 || before == 0x68 || before2 == 0xc7 || before3 == 0xc7
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &[u8]) -> u32 {
        let mut search = Search::new(&[(0x1000, 16)]);
        search.code(0x2000, code);
        search.targets[&0x1000].references
    }

    #[test]
    fn counts_calls_and_addresses_taken() {
        let call = [0x90, 0x90, 0xe8, 0xf9, 0xef, 0xff, 0xff];
        assert_eq!(found(&call), 1); // 0x2007 - 0x1007
        let lea = [0x48, 0x8d, 0x3d, 0xf9, 0xef, 0xff, 0xff];
        assert_eq!(found(&lea), 1);
        let mov = [0x90, 0x90, 0xbf, 0x00, 0x10, 0x00, 0x00];
        assert_eq!(found(&mov), 1);
    }

    #[test]
    fn ignores_other_bytes_and_recursion() {
        assert_eq!(found(&[0x90, 0x90, 0x05, 0xf9, 0xef, 0xff, 0xff]), 0);
        let mut search = Search::new(&[(0x1000, 16)]);
        search.code(0x1000, &[0x90, 0x90, 0xe8, 0xf9, 0xff, 0xff, 0xff]);
        assert_eq!(search.targets[&0x1000].references, 0);
    }

    #[test]
    fn counts_pointers_in_data() {
        let mut search = Search::new(&[(0x1000, 16)]);
        search.data(&0x1000_u64.to_le_bytes());
        assert_eq!(search.targets[&0x1000].references, 1);
    }
}
