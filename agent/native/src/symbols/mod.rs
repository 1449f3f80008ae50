//! Resolves ELF virtual addresses to names, using ELF files, symbol tables, debug files, inlined calls and
//! the kernel's symbols.
//!
//! All input is untrusted. A malformed file results in fewer names and a [`SymbolTable::problem`], but never
//! in a panic.

mod by_address;
mod bytes;
mod crc;
mod debugdata;
mod debugfile;
mod demangle;
mod elf;
mod headers;
mod imports;
mod inlines;
mod kallsyms;
pub mod limits;
pub mod memory_budget;
pub mod opening;
pub mod pack;
mod pack_symbols;
mod rawtable;
mod sections;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use object::elf::{SHT_DYNSYM, SHT_SYMTAB, SectionType};

pub use bytes::Bytes;
pub use debugfile::{DebugSearch, find as find_debug_file};
pub use demangle::demangle;
pub use elf::{ElfError, ElfFile, LoadedSection, Section};
pub use headers::Segment;
pub use inlines::Inlines;
pub use kallsyms::Kallsyms;
pub use table::{Found, Named, Source, Symbol, SymbolTable};

use rawtable::RawTable;

/// Load the symbols of a module from the best available source: its own `.symtab`, the `.symtab` of its debug
/// file, its symbol pack, `.gnu_debugdata` together with `.dynsym`, or `.dynsym` alone.
///
/// `opened_as` is the path as the observed process sees it. A malformed source is skipped and reported in
/// [`SymbolTable::problem`]. This takes a few ms for a server.
pub fn load(elf: &Arc<ElfFile>, opened_as: &Path, search: &DebugSearch) -> SymbolTable {
    let mut problems = Vec::new();
    let table = own_symtab(elf, &mut problems)
        .or_else(|| debug_file(elf, opened_as, search, &mut problems))
        .or_else(|| from_pack(elf, search, &mut problems))
        .unwrap_or_else(|| small_tables(elf, &mut problems));
    with_problems(table, elf, problems)
}

/// Load the symbols from the file alone, without searching for other files.
pub fn load_own(elf: &Arc<ElfFile>) -> SymbolTable {
    let mut problems = Vec::new();
    let table = own_symtab(elf, &mut problems).unwrap_or_else(|| small_tables(elf, &mut problems));
    with_problems(table, elf, problems)
}

fn with_problems(mut table: SymbolTable, elf: &ElfFile, mut problems: Vec<String>) -> SymbolTable {
    problems.extend(elf.problem().map(|reason| format!("{}: {reason}", elf.path().display())));
    table.problem = (!problems.is_empty()).then(|| problems.join("; "));
    table
}

/// Find the file with the DWARF of a module: the module itself or its debug file.
pub fn find_dwarf(elf: &Arc<ElfFile>, opened_as: &Path, search: &DebugSearch) -> Option<Arc<ElfFile>> {
    if elf.has_debug_info() {
        return Some(Arc::clone(elf));
    }
    debugfile::find_open(elf, opened_as, search, &mut Vec::new()).filter(|file| file.has_debug_info())
}

fn own_symtab(elf: &ElfFile, problems: &mut Vec<String>) -> Option<SymbolTable> {
    let table = read(elf, SHT_SYMTAB, problems)?;
    not_empty(SymbolTable::new(Source::Symtab, vec![table]))
}

fn debug_file(
    elf: &ElfFile,
    opened_as: &Path,
    search: &DebugSearch,
    problems: &mut Vec<String>,
) -> Option<SymbolTable> {
    if elf.is_in_memory() {
        return None;
    }
    let file = debugfile::find_open(elf, opened_as, search, problems)?;
    let table = read(&file, SHT_SYMTAB, problems)?;
    let mut table = not_empty(SymbolTable::new(Source::DebugFile, vec![table]))?;
    table.path = Some(file.path().to_owned());
    Some(table)
}

fn from_pack(elf: &ElfFile, search: &DebugSearch, problems: &mut Vec<String>) -> Option<SymbolTable> {
    if elf.is_in_memory() || search.packs.as_os_str().is_empty() {
        return None;
    }
    match pack::find(&search.packs, &elf.build_id()?)? {
        Ok(pack) => {
            let mut table = not_empty(SymbolTable::new(Source::Pack, vec![pack.table()]))?;
            table.path = Some(pack.path);
            Some(table)
        }
        Err(error) => {
            problems.push(error.to_string());
            None
        }
    }
}

fn small_tables(elf: &ElfFile, problems: &mut Vec<String>) -> SymbolTable {
    let inner = match debugdata::inner(elf) {
        Some(Ok(inner)) => read(&inner, SHT_SYMTAB, problems),
        Some(Err(reason)) => {
            problems.push(format!("{}: .gnu_debugdata: {reason}", elf.path().display()));
            None
        }
        None => None,
    };
    let dynsym = read(elf, SHT_DYNSYM, problems);
    let source = match (&inner, &dynsym, elf.is_in_memory()) {
        (Some(_), _, _) => Source::Debugdata,
        (None, Some(_), true) => Source::Vdso,
        (None, Some(_), false) => Source::Dynsym,
        (None, None, _) => Source::None,
    };
    let tables = inner.into_iter().chain(dynsym).collect();
    not_empty(SymbolTable::new(source, tables)).unwrap_or_default()
}

fn read(elf: &ElfFile, kind: SectionType, problems: &mut Vec<String>) -> Option<RawTable> {
    match RawTable::read(elf, kind) {
        Ok(table) => table,
        Err(reason) => {
            problems.push(format!("{}: {reason}", elf.path().display()));
            None
        }
    }
}

fn not_empty(table: SymbolTable) -> Option<SymbolTable> {
    (!table.is_empty()).then_some(table)
}
