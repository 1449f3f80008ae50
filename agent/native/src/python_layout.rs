//! The part of the Python interface that reads values from a server's memory; _native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::confined::{self, ChildCommand};
use crate::error::{Error, Kind, Result};
use crate::maps::{self, Mapping};
use crate::python::reader;
use crate::symbols::{self, DebugSearch, ElfFile};
use crate::{layout, memory, modules};

type PyMember = (Vec<u64>, u64, &'static str, u64, u64);
/// Addresses and sizes by name, and the source of the names.
type PyGlobals = (HashMap<String, (u64, u64)>, &'static str);
/// The members that were found, and the reasons why others were not.
type PyMembers = (HashMap<String, PyMember>, HashMap<String, String>);

fn executable(pid: u32) -> Result<(Arc<ElfFile>, Mapping)> {
    let mapping = maps::main_executable(pid)?;
    Ok((modules::open_elf(pid, &mapping)?, mapping))
}

#[pyfunction]
fn globals_in_process(
    py: Python<'_>,
    pid: u32,
    names: Vec<String>,
    debug_dirs: Vec<PathBuf>,
    debug_files: HashMap<String, PathBuf>,
) -> PyResult<PyGlobals> {
    let found = py.detach(|| {
        let (elf, mapping) = executable(pid)?;
        let bias = modules::bias(&elf, &mapping)
            .ok_or_else(|| Error::new(Kind::Elf, format!("{}: no segment is mapped", mapping.path)))?;
        let search = DebugSearch::of_process(pid, debug_dirs, debug_files);
        let table = symbols::load(&elf, Path::new(&mapping.path), &search);
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = table.find_many(&wanted).into_iter().filter_map(|(name, found)| match found {
            symbols::Found::One { address, size } => {
                Some((name.to_owned(), (address.wrapping_add(bias), size)))
            }
            symbols::Found::Ambiguous => None,
        });
        Ok::<_, Error>((found.collect(), table.source.as_str()))
    })?;
    Ok(found)
}

#[pyfunction]
fn members_in_process(
    py: Python<'_>,
    pid: u32,
    members: Vec<String>,
    debug_dirs: Vec<PathBuf>,
    debug_files: HashMap<String, PathBuf>,
) -> PyResult<Option<PyMembers>> {
    let reader = reader(py)?;
    let results = py.detach(|| {
        let (elf, mapping) = executable(pid)?;
        let search = DebugSearch::of_process(pid, debug_dirs, debug_files);
        let dwarf = symbols::find_dwarf(&elf, Path::new(&mapping.path), &search);
        dwarf.map(|dwarf| read(&reader, &dwarf, &members)).transpose()
    })?;
    Ok(results.map(|results| split_results(members, results)))
}

#[pyfunction]
fn members_in_file(py: Python<'_>, path: PathBuf, members: Vec<String>) -> PyResult<Option<PyMembers>> {
    let reader = reader(py)?;
    let results = py.detach(|| {
        let elf = ElfFile::open(&path).map_err(|error| Error::new(Kind::Elf, error.to_string()))?;
        elf.has_debug_info().then(|| read(&reader, &elf, &members)).transpose()
    })?;
    Ok(results.map(|results| split_results(members, results)))
}

type Results = Vec<std::result::Result<layout::Member, String>>;

fn read(reader: &ChildCommand, elf: &ElfFile, members: &[String]) -> Result<Results> {
    confined::members(reader, elf, members).map_err(|reason| Error::new(Kind::Elf, reason))
}

/// Split the answers into found members and reasons, both by path.
fn split_results(
    members: Vec<String>,
    results: Vec<std::result::Result<layout::Member, String>>,
) -> PyMembers {
    let (mut found, mut missing) = (HashMap::new(), HashMap::new());
    for (path, result) in members.into_iter().zip(results) {
        match result {
            Ok(member) => {
                let kind = member.kind.as_str();
                found.insert(path, (member.offsets, member.size, kind, member.stride, member.count));
            }
            Err(reason) => {
                missing.insert(path, reason);
            }
        }
    }
    (found, missing)
}

#[pyfunction]
fn read_many(
    py: Python<'_>,
    pid: u32,
    places: Vec<(u64, usize)>,
) -> PyResult<Vec<Option<Bound<'_, PyBytes>>>> {
    let read = py.detach(|| memory::read_many(pid, &places))?;
    Ok(read.into_iter().map(|bytes| bytes.map(|bytes| PyBytes::new(py, &bytes))).collect())
}

/// Add these functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(globals_in_process, module)?)?;
    module.add_function(wrap_pyfunction!(members_in_process, module)?)?;
    module.add_function(wrap_pyfunction!(members_in_file, module)?)?;
    module.add_function(wrap_pyfunction!(read_many, module)?)
}
