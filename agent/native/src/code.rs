//! Opens one mapped code file for probing, and provides its functions, their file offsets, and a path that
//! opens exactly this file.

use std::path::PathBuf;
use std::sync::Arc;

use crate::arch::NATIVE;
use crate::error::{Error, Kind, Result};
use crate::maps::{self, Mapping};
use crate::modules;
use crate::references;
use crate::symbols::{self, DebugSearch, ElfFile, Named, SymbolTable};

/// An upper bound on the length of an instruction, in bytes.
const INSTRUCTION: u64 = 16;

/// A mapped file with its symbols.
pub struct CodeFile {
    pid: u32,
    mapping: Mapping,
    elf: Arc<ElfFile>,
    table: SymbolTable,
    /// The difference between an address in the process and the ELF virtual address.
    pub bias: u64,
}

/// A function that can be probed.
#[cfg_attr(feature = "python", pyo3::pyclass(frozen, get_all, eq, hash))]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Function {
    /// The mangled name from the symbol table.
    pub symbol: String,
    /// ELF virtual address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// File offset of the function's first instruction.
    pub offset: u64,
    /// True if a probe on this function is expensive; see [`crate::arch::Arch::is_stepped`].
    pub stepped: bool,
}

/// A variable of the process.
#[cfg_attr(feature = "python", pyo3::pyclass(frozen, get_all, eq, hash))]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Variable {
    /// The mangled name from the symbol table.
    pub symbol: String,
    /// The address of its first byte in the process.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
}

impl CodeFile {
    /// Open the main executable or, with `name`, the first mapped file whose base name begins with it.
    ///
    /// Errors: `Gone`, `Rights`, or `Elf` if no such file is mapped or it is damaged.
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

    /// Return a path that opens the mapped file itself, even if another file has replaced it on disk.
    pub fn path(&self) -> PathBuf {
        let Mapping { start, end, .. } = self.mapping;
        PathBuf::from(format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid))
    }

    /// Return the path as the process sees it.
    pub fn shown_path(&self) -> &str {
        &self.mapping.path
    }

    /// Return the GNU build-id of the mapped file.
    pub fn build_id(&self) -> Option<String> {
        self.elf.build_id()
    }

    /// Return the source of the symbol names.
    pub fn symbols_from(&self) -> &'static str {
        self.table.source.as_str()
    }

    /// Return the reason why a better source of names could not be used, or None.
    pub fn problem(&self) -> Option<&str> {
        self.table.problem.as_deref()
    }

    /// List the functions whose names begin with one of these prefixes, except IFUNC resolvers, which run
    /// only once.
    pub fn functions(&self, prefixes: &[String]) -> Vec<Function> {
        let named = self.table.named(prefixes).into_iter().filter(|named| named.is_code);
        named
            .filter_map(|Named { name, address, size, .. }| {
                let offset = self.file_offset(address)?;
                let stepped = (NATIVE.is_stepped)(&self.elf.read(offset, INSTRUCTION)?);
                Some(Function { symbol: name, address, size, offset, stepped })
            })
            .collect()
    }

    /// List the variables whose names begin with one of these prefixes.
    pub fn variables(&self, prefixes: &[String]) -> Vec<Variable> {
        let named = self.table.named(prefixes).into_iter().filter(|named| !named.is_code);
        named.map(|named| self.variable(named)).collect()
    }

    /// Return, for each of these addresses in the process, the variable that covers it.
    pub fn variables_at(&self, addresses: &[u64]) -> Vec<Option<Variable>> {
        let svmas: Vec<u64> = addresses.iter().map(|one| one.wrapping_sub(self.bias)).collect();
        let found = self.table.variables_at(&svmas);
        found.into_iter().map(|named| named.map(|named| self.variable(named))).collect()
    }

    fn variable(&self, Named { name, address, size, .. }: Named) -> Variable {
        Variable { symbol: name, address: address.wrapping_add(self.bias), size }
    }

    /// Count the file's references to each of these functions (ELF virtual address, size); see
    /// [`references`].
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
