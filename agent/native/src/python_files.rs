//! The part of the Python interface for ELF files, and for the memory of processes; agent/innoscope/_native.pyi
//! documents it.

// PyO3 passes converted arguments by value. The booleans of ElfInfo are independent of each other.
#![allow(clippy::needless_pass_by_value, clippy::struct_excessive_bools)]

use std::collections::HashMap;
use std::os::fd::IntoRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Error, Kind};
use crate::symbols::{self, DebugSearch, ElfFile, SymbolTable};
use crate::{maps, memory, modules};

#[pyclass(frozen, get_all)]
struct ElfInfo {
    machine: &'static str,
    build_id: Option<String>,
    has_symtab: bool,
    has_dynsym: bool,
    has_debug_info: bool,
    has_debugdata: bool,
    debuglink: Option<String>,
}

#[pyfunction]
fn open_regular(py: Python<'_>, path: PathBuf) -> PyResult<i32> {
    py.detach(|| Ok(symbols::opening::regular(&path)?.into_raw_fd()))
}

#[pyfunction]
fn file_identity(py: Python<'_>, path: PathBuf) -> PyResult<(u64, u64)> {
    py.detach(|| Ok(symbols::opening::identity(&path)?))
}

fn open_elf(path: &Path) -> PyResult<Arc<ElfFile>> {
    Ok(ElfFile::open(path).map_err(|error| Error::new(Kind::Elf, error.to_string()))?)
}

#[pyfunction]
fn elf_info(py: Python<'_>, path: PathBuf) -> PyResult<ElfInfo> {
    py.detach(|| {
        let elf = open_elf(&path)?;
        Ok(ElfInfo {
            machine: elf.machine(),
            build_id: elf.build_id(),
            has_symtab: elf.has_symtab(),
            has_dynsym: elf.has_dynsym(),
            has_debug_info: elf.has_debug_info(),
            has_debugdata: elf.has_debugdata(),
            debuglink: elf.debuglink().map(|(name, _crc)| name),
        })
    })
}

#[pyfunction]
fn find_debug_file(py: Python<'_>, path: PathBuf, debug_dirs: Vec<PathBuf>) -> PyResult<Option<PathBuf>> {
    py.detach(|| {
        let elf = open_elf(&path)?;
        let search = DebugSearch { dirs: debug_dirs, ..DebugSearch::default() };
        Ok(symbols::find_debug_file(&elf, &path, &search))
    })
}

#[pyclass(frozen, get_all, eq)]
#[derive(PartialEq, Eq)]
pub(crate) struct Symbol {
    address: u64,
    size: u64,
}

#[pymethods]
impl Symbol {
    #[new]
    pub(crate) fn new(address: u64, size: u64) -> Self {
        Self { address, size }
    }
}

#[pyfunction]
fn symbol_in_file(py: Python<'_>, path: PathBuf, names: Vec<String>) -> PyResult<HashMap<String, Symbol>> {
    py.detach(|| {
        let elf = open_elf(&path)?;
        Ok(find_all(&symbols::load_own(&elf), names, 0))
    })
}

#[pyfunction]
fn symbol_in_process(py: Python<'_>, pid: u32, names: Vec<String>) -> PyResult<HashMap<String, Symbol>> {
    py.detach(|| {
        let mapping = maps::main_executable(pid)?;
        let elf = modules::open_elf(pid, &mapping)?;
        let bias = modules::bias(&elf, &mapping).ok_or_else(|| {
            Error::new(Kind::Elf, format!("{}: no segment of the file is mapped", mapping.path))
        })?;
        Ok(find_all(&symbols::load_own(&elf), names, bias))
    })
}

fn find_all(table: &SymbolTable, names: Vec<String>, bias: u64) -> HashMap<String, Symbol> {
    names
        .into_iter()
        .filter_map(|name| {
            let (address, size) = table.find(&name)?;
            Some((name, Symbol::new(address.wrapping_add(bias), size)))
        })
        .collect()
}

#[pyfunction]
fn read_memory(py: Python<'_>, pid: u32, address: u64, size: usize) -> PyResult<Bound<'_, PyBytes>> {
    let bytes = py.detach(|| memory::read(pid, address, size))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ElfInfo>()?;
    module.add_class::<Symbol>()?;
    module.add_function(wrap_pyfunction!(open_regular, module)?)?;
    module.add_function(wrap_pyfunction!(file_identity, module)?)?;
    module.add_function(wrap_pyfunction!(elf_info, module)?)?;
    module.add_function(wrap_pyfunction!(find_debug_file, module)?)?;
    module.add_function(wrap_pyfunction!(symbol_in_file, module)?)?;
    module.add_function(wrap_pyfunction!(symbol_in_process, module)?)?;
    module.add_function(wrap_pyfunction!(read_memory, module)?)
}
