//! One file of code that is mapped into a process, as probes need it: by what path the very file that runs is
//! reached, which functions it has, and where in the file they begin.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Kind, Result};
use crate::maps::{self, Mapping};
use crate::modules;
use crate::references;
use crate::symbols::{self, DebugSearch, ElfFile, Named, SymbolTable};
use crate::uprobe;

/// Bytes of the longest instruction of x86-64.
const INSTRUCTION: u64 = 16;

/// A mapped file with its symbols.
pub struct CodeFile {
    pid: u32,
    mapping: Mapping,
    elf: Arc<ElfFile>,
    table: SymbolTable,
    /// What to add to an ELF virtual address to get the address in the process.
    pub bias: u64,
}

/// A function that can be probed.
#[derive(Debug, Clone)]
pub struct Function {
    /// As in the symbol table, mangled.
    pub name: String,
    /// ELF virtual address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Offset of its first instruction in the file.
    pub offset: u64,
    /// Whether a probe on it is one of the expensive kind; see [`uprobe::is_stepped`].
    pub stepped: bool,
}

impl CodeFile {
    /// The main executable, or the first mapped file whose base name begins with `name`.
    ///
    /// Errors: `Gone`, `Rights`, `Elf` where no such file is mapped or it is damaged.
    pub fn new(pid: u32, name: Option<&str>, search: &DebugSearch) -> Result<Self> {
        let mapping = match name {
            None => maps::main_executable(pid)?,
            Some(name) => library(pid, name)?,
        };
        let elf = modules::open_elf(pid, &mapping)?;
        let bias = modules::bias(&elf, &mapping).ok_or_else(|| {
            Error::new(Kind::Elf, format!("{}: no segment of the file is mapped", mapping.path))
        })?;
        let table = symbols::load(&elf, mapping.path.as_ref(), search);
        Ok(Self { pid, mapping, elf, table, bias })
    }

    /// The path that opens the mapped file itself, whatever lies under its name by now.
    pub fn path(&self) -> PathBuf {
        let Mapping { start, end, .. } = self.mapping;
        PathBuf::from(format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid))
    }

    /// The path as the process sees it.
    pub fn shown_path(&self) -> &str {
        &self.mapping.path
    }

    /// The GNU build-id of the mapped file.
    pub fn build_id(&self) -> Option<String> {
        self.elf.build_id()
    }

    /// Where the names come from.
    pub fn symbols_from(&self) -> &'static str {
        self.table.source.as_str()
    }

    /// Why a better source of names could not be used, in words.
    pub fn problem(&self) -> Option<&str> {
        self.table.problem.as_deref()
    }

    /// The functions whose names begin with one of these. Resolvers (IFUNC) are left out: they run once.
    pub fn functions(&self, beginnings: &[String]) -> Vec<Function> {
        let named = self.table.named(beginnings).into_iter().filter(|named| named.is_code);
        named
            .filter_map(|Named { name, address, size, .. }| {
                let offset = self.file_offset(address)?;
                let stepped = uprobe::is_stepped(&self.elf.read(offset, INSTRUCTION)?);
                Some(Function { name, address, size, offset, stepped })
            })
            .collect()
    }

    /// The variables whose names begin with one of these: (name, address in the process, size in bytes).
    pub fn variables(&self, beginnings: &[String]) -> Vec<(String, u64, u64)> {
        let named = self.table.named(beginnings).into_iter().filter(|named| !named.is_code);
        named.map(|Named { name, address, size, .. }| (name, address.wrapping_add(self.bias), size)).collect()
    }

    /// The variable at each of these addresses in the process: (name, address of its first byte there).
    pub fn variables_at(&self, addresses: &[u64]) -> Vec<Option<(String, u64)>> {
        let own: Vec<u64> = addresses.iter().map(|one| one.wrapping_sub(self.bias)).collect();
        let found = self.table.variables_at(&own);
        let told = |Named { name, address, .. }| (name, address.wrapping_add(self.bias));
        found.into_iter().map(|one| one.map(told)).collect()
    }

    /// How often the file refers to each of these functions (ELF virtual address, size); see [`references`].
    pub fn references(&self, functions: &[(u64, u64)]) -> Option<Vec<u32>> {
        references::count(&self.elf, functions)
    }

    fn file_offset(&self, address: u64) -> Option<u64> {
        let segment =
            self.elf.load_segments().iter().find(|s| s.executable && s.svma().contains(&address))?;
        let offset = address - segment.vaddr;
        (offset < segment.filesz).then(|| segment.offset + offset)
    }
}

fn library(pid: u32, name: &str) -> Result<Mapping> {
    let base = |mapping: &Mapping| mapping.path.rsplit('/').next().is_some_and(|base| base.starts_with(name));
    maps::executable(pid)?
        .into_iter()
        .find(base)
        .ok_or_else(|| Error::new(Kind::Elf, format!("process {pid} has no {name} mapped")))
}
