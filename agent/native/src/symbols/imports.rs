//! The dynamic linker's view of a function: the names that a file exports for it, and the slots through which
//! other files call it.

use object::elf;
use rustc_hash::FxHashSet;

use super::rawtable::RawTable;
use super::{ElfFile, limits};

/// Size of an `Elf64_Rela` entry: offset, symbol and type, addend.
const ENTRY: usize = 24;

impl ElfFile {
    /// Return the names under which this file exports the function that starts at an ELF virtual address.
    pub fn exported_names(&self, svma: u64) -> FxHashSet<String> {
        let Ok(Some(symbols)) = RawTable::read(self, elf::SHT_DYNSYM) else { return FxHashSet::default() };
        let found = symbols.symbols().filter(|(_, symbol)| symbol.address == svma);
        found
            .filter(|(_, symbol)| symbols.is_function(*symbol))
            .filter_map(|(_, symbol)| symbols.name(symbol).map(str::to_owned))
            .collect()
    }

    /// Return the ELF virtual addresses of the words in which the dynamic linker stores the addresses of
    /// functions with these names.
    pub fn import_slots(&self, names: &FxHashSet<String>) -> FxHashSet<u64> {
        let mut found = FxHashSet::default();
        let Ok(Some(symbols)) = RawTable::read(self, elf::SHT_DYNSYM) else { return found };
        let tables = self.headers().sections.iter().filter(|section| section.kind == elf::SHT_RELA.0);
        for table in tables.filter(|table| table.size <= limits::FILE_BYTES) {
            let Some(bytes) = self.raw(table) else { continue };
            for entry in bytes.as_chunks::<ENTRY>().0 {
                let slot = entry.first_chunk().map(|slot| u64::from_le_bytes(*slot));
                let symbol = u32::from_le_bytes([entry[12], entry[13], entry[14], entry[15]]);
                let name = symbols.symbol(symbol).and_then(|symbol| symbols.name(symbol));
                if symbol != 0 && name.is_some_and(|name| names.contains(name)) {
                    found.extend(slot);
                }
            }
        }
        found
    }
}
