//! The part of the Python interface that reads values from a server's memory; _native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::confined::{self, ChildCommand};
use crate::error::{Error, Kind, Result};
use crate::maps::{self, Mapping};
use crate::python::reader;
use crate::python_files::Symbol;
use crate::symbols::{self, DebugSearch, ElfFile};
use crate::{layout, memory, modules};

#[pyclass(frozen, get_all)]
struct Globals {
    symbols: Py<PyDict>,
    source: &'static str,
}

#[pyclass(frozen, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct Member {
    pub(crate) inner: layout::Member,
}

#[pymethods]
impl Member {
    #[new]
    #[pyo3(signature = (offsets, size, kind, stride = 0, count = 1))]
    fn new(offsets: Vec<u64>, size: u64, kind: &str, stride: u64, count: u64) -> PyResult<Self> {
        let kind = layout::Kind::from_word(kind)
            .ok_or_else(|| PyValueError::new_err(format!("unknown kind of member {kind:?}")))?;
        Ok(Self { inner: layout::Member { offsets, size, kind, stride, count } })
    }

    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.inner.offsets)
    }

    #[getter]
    fn size(&self) -> u64 {
        self.inner.size
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.inner.kind.as_str()
    }

    #[getter]
    fn stride(&self) -> u64 {
        self.inner.stride
    }

    #[getter]
    fn count(&self) -> u64 {
        self.inner.count
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.inner)
    }
}

#[pyclass(frozen, get_all)]
struct Members {
    found: Py<PyDict>,
    missing: Py<PyDict>,
}

#[pymethods]
impl Members {
    #[new]
    fn new(found: Py<PyDict>, missing: Py<PyDict>) -> Self {
        Self { found, missing }
    }
}

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
) -> PyResult<Globals> {
    let (symbols, source) = py.detach(|| {
        let (elf, mapping) = executable(pid)?;
        let bias = modules::bias(&elf, &mapping)
            .ok_or_else(|| Error::new(Kind::Elf, format!("{}: no segment is mapped", mapping.path)))?;
        let search = DebugSearch::of_process(pid, debug_dirs, debug_files);
        let table = symbols::load(&elf, Path::new(&mapping.path), &search);
        let wanted: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = table.find_many(&wanted).into_iter().filter_map(|(name, found)| match found {
            symbols::Found::One { address, size } => {
                Some((name.to_owned(), Symbol::new(address.wrapping_add(bias), size)))
            }
            symbols::Found::Ambiguous => None,
        });
        Ok::<_, Error>((found.collect::<HashMap<_, _>>(), table.source.as_str()))
    })?;
    Ok(Globals { symbols: symbols.into_pyobject(py)?.unbind(), source })
}

#[pyfunction]
fn members_in_process(
    py: Python<'_>,
    pid: u32,
    members: Vec<String>,
    debug_dirs: Vec<PathBuf>,
    debug_files: HashMap<String, PathBuf>,
) -> PyResult<Option<Members>> {
    let reader = reader(py)?;
    let results = py.detach(|| {
        let (elf, mapping) = executable(pid)?;
        let search = DebugSearch::of_process(pid, debug_dirs, debug_files);
        let dwarf = symbols::find_dwarf(&elf, Path::new(&mapping.path), &search);
        dwarf.map(|dwarf| read(&reader, &dwarf, &members)).transpose()
    })?;
    results.map(|results| split_results(py, members, results)).transpose()
}

#[pyfunction]
fn members_in_file(py: Python<'_>, path: PathBuf, members: Vec<String>) -> PyResult<Option<Members>> {
    let reader = reader(py)?;
    let results = py.detach(|| {
        let elf = ElfFile::open(&path).map_err(|error| Error::new(Kind::Elf, error.to_string()))?;
        elf.has_debug_info().then(|| read(&reader, &elf, &members)).transpose()
    })?;
    results.map(|results| split_results(py, members, results)).transpose()
}

type Results = Vec<std::result::Result<layout::Member, String>>;

fn read(reader: &ChildCommand, elf: &ElfFile, members: &[String]) -> Result<Results> {
    confined::members(reader, elf, members).map_err(|reason| Error::new(Kind::Elf, reason))
}

/// Split the results into the members found and the reasons for failures, both by path.
fn split_results(py: Python<'_>, members: Vec<String>, results: Results) -> PyResult<Members> {
    let (found, missing) = (PyDict::new(py), PyDict::new(py));
    for (path, result) in members.into_iter().zip(results) {
        match result {
            Ok(inner) => found.set_item(path, Member { inner })?,
            Err(reason) => missing.set_item(path, reason)?,
        }
    }
    Ok(Members { found: found.unbind(), missing: missing.unbind() })
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

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Globals>()?;
    module.add_class::<Member>()?;
    module.add_class::<Members>()?;
    module.add_function(wrap_pyfunction!(globals_in_process, module)?)?;
    module.add_function(wrap_pyfunction!(members_in_process, module)?)?;
    module.add_function(wrap_pyfunction!(members_in_file, module)?)?;
    module.add_function(wrap_pyfunction!(read_many, module)?)
}
