//! The part of the Python interface for probes; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::bpfmap::Map;
use crate::code::{self, Function, Variable};
use crate::error::{Error, Kind, Result};
use crate::symbols::{self, DebugSearch};
use crate::{calibration, closers, programs, trace, uprobe};

#[pyclass(frozen)]
struct CodeFile {
    inner: code::CodeFile,
}

#[pymethods]
impl CodeFile {
    #[new]
    #[pyo3(signature = (pid, name = None, *, debug_dirs = None))]
    fn new(
        py: Python<'_>,
        pid: u32,
        name: Option<String>,
        debug_dirs: Option<Vec<PathBuf>>,
    ) -> PyResult<Self> {
        let dirs = debug_dirs.unwrap_or_else(|| vec![PathBuf::from("/usr/lib/debug")]);
        let search = DebugSearch::of_process(pid, dirs, HashMap::default());
        let inner = py.detach(|| code::CodeFile::new(pid, name.as_deref(), &search))?;
        Ok(Self { inner })
    }

    #[getter]
    fn path(&self) -> String {
        self.inner.path().display().to_string()
    }

    #[getter]
    fn shown_path(&self) -> &str {
        self.inner.shown_path()
    }

    #[getter]
    fn build_id(&self) -> Option<String> {
        self.inner.build_id()
    }

    #[getter]
    fn symbols_from(&self) -> &'static str {
        self.inner.symbols_from()
    }

    #[getter]
    fn problem(&self) -> Option<&str> {
        self.inner.problem()
    }

    #[getter]
    fn bias(&self) -> u64 {
        self.inner.bias
    }

    fn functions(&self, py: Python<'_>, prefixes: Vec<String>) -> Vec<Function> {
        py.detach(|| self.inner.functions(&prefixes))
    }

    fn variables(&self, py: Python<'_>, prefixes: Vec<String>) -> Vec<Variable> {
        py.detach(|| self.inner.variables(&prefixes))
    }

    fn variables_at(&self, py: Python<'_>, addresses: Vec<u64>) -> Vec<Option<Variable>> {
        py.detach(|| self.inner.variables_at(&addresses))
    }

    fn references(&self, py: Python<'_>, functions: Vec<PyRef<'_, Function>>) -> Option<Vec<u32>> {
        let bodies: Vec<(u64, u64)> =
            functions.iter().map(|function| (function.address, function.size)).collect();
        py.detach(|| self.inner.references(&bodies))
    }
}

#[pymethods]
impl Function {
    #[new]
    fn from_python(symbol: String, address: u64, size: u64, offset: u64, stepped: bool) -> Self {
        Self { symbol, address, size, offset, stepped }
    }
}

#[pyclass(frozen)]
struct Uprobe {
    /// The descriptor; None after the probe has been detached.
    event: Mutex<Option<OwnedFd>>,
}

#[pymethods]
impl Uprobe {
    #[new]
    #[pyo3(signature = (program, path, offset, pid, *, on_return = false))]
    fn new(
        py: Python<'_>,
        program: RawFd,
        path: PathBuf,
        offset: u64,
        pid: u32,
        on_return: bool,
    ) -> PyResult<Self> {
        let place = uprobe::Place { file: &path, offset, pid, on_return };
        let event = py.detach(|| uprobe::attach(program, place))?;
        Ok(Self { event: Mutex::new(Some(event)) })
    }

    fn detach(&self, py: Python<'_>) {
        let event = self.take();
        py.detach(|| closers::close_all(event.into_iter().collect()));
    }
}

/// Detach a probe that was not detached explicitly. A closer process does this, not the thread that drops the
/// object.
impl Drop for Uprobe {
    fn drop(&mut self) {
        closers::close_all(self.take().into_iter().collect());
    }
}

impl Uprobe {
    fn take(&self) -> Option<OwnedFd> {
        self.event.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pyclass(frozen)]
struct BpfMap {
    inner: Map,
}

#[pymethods]
impl BpfMap {
    #[new]
    #[pyo3(signature = (descriptor, *, key_bytes = 4, words = 1, per_cpu = false))]
    fn new(descriptor: RawFd, key_bytes: usize, words: usize, per_cpu: bool) -> Self {
        Self { inner: Map { descriptor, key_bytes, words, per_cpu } }
    }

    fn array(&self, entries: u32) -> PyResult<Vec<Vec<u64>>> {
        self.inner.array(entries).map_err(with_errno)
    }

    fn entries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let entries = PyDict::new(py);
        for (key, value) in self.inner.items().map_err(with_errno)? {
            entries.set_item(PyBytes::new(py, &key), value)?;
        }
        Ok(entries)
    }

    fn update(&self, key: Vec<u8>, value: Vec<u8>) -> PyResult<()> {
        self.inner.update(&key, &value).map_err(with_errno)
    }

    fn delete(&self, key: Vec<u8>) -> PyResult<()> {
        self.inner.delete(&key).map_err(with_errno)
    }
}

/// Convert an error including its `errno`, which PyO3's own conversion omits.
fn with_errno(error: io::Error) -> PyErr {
    match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => error.into(),
    }
}

#[pyclass(frozen)]
struct TracePrograms {
    inner: Mutex<Option<trace::Trace>>,
}

#[pymethods]
impl TracePrograms {
    #[new]
    #[pyo3(signature = (*, argument = None, bits = 64, timed = false, ring_bytes = None))]
    fn new(
        py: Python<'_>,
        argument: Option<u32>,
        bits: u32,
        timed: bool,
        ring_bytes: Option<u32>,
    ) -> PyResult<Self> {
        let options = trace::Options { argument, bits, timed, ring_bytes };
        let inner = py.detach(|| trace::Trace::new(options))?;
        Ok(Self { inner: Mutex::new(Some(inner)) })
    }

    fn program(&self, name: &str) -> PyResult<RawFd> {
        Ok(self.with(|trace| trace.program(name))?)
    }

    fn map(&self, name: &str) -> PyResult<RawFd> {
        Ok(self.with(|trace| trace.map(name))?)
    }

    fn close(&self) {
        *self.inner.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl TracePrograms {
    fn with(&self, find: impl FnOnce(&trace::Trace) -> Result<RawFd>) -> Result<RawFd> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        find(inner.as_ref().ok_or_else(|| Error::new(Kind::Internal, "the programs are closed"))?)
    }
}

#[pyfunction]
fn create_map(
    name: String,
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
) -> PyResult<RawFd> {
    let shape = programs::Shape { name, kind, key_bytes, value_bytes, entries, flags };
    Ok(programs::create_map(&shape)?.into_raw_fd())
}

#[pyfunction]
fn load_uprobe_program(py: Python<'_>, name: &str, code: Vec<u8>, maps: Vec<RawFd>) -> PyResult<RawFd> {
    Ok(py.detach(|| programs::load_uprobe(name, &code, &maps))?.into_raw_fd())
}

#[pyfunction]
fn detach_all(py: Python<'_>, probes: Vec<PyRef<'_, Uprobe>>) {
    let events: Vec<OwnedFd> = probes.iter().filter_map(|probe| probe.take()).collect();
    py.detach(|| closers::close_all(events));
}

#[pyfunction]
#[pyo3(signature = (calls, *, stepped = false))]
fn calibration_run(py: Python<'_>, calls: u32, stepped: bool) -> u64 {
    py.detach(|| calibration::run(calls, stepped)).as_nanos() as u64
}

#[pyfunction]
fn demangle(py: Python<'_>, symbols: Vec<String>) -> Vec<String> {
    py.detach(|| symbols.iter().map(|symbol| symbols::demangle(symbol)).collect())
}

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CodeFile>()?;
    module.add_class::<Function>()?;
    module.add_class::<Variable>()?;
    module.add_class::<Uprobe>()?;
    module.add_class::<BpfMap>()?;
    module.add_class::<TracePrograms>()?;
    module.add("CALIBRATION_FUNCTION", calibration::FUNCTION)?;
    module.add("CALIBRATION_FUNCTION_STEPPED", calibration::STEPPED_FUNCTION)?;
    module.add_function(wrap_pyfunction!(demangle, module)?)?;
    module.add_function(wrap_pyfunction!(create_map, module)?)?;
    module.add_function(wrap_pyfunction!(load_uprobe_program, module)?)?;
    module.add_function(wrap_pyfunction!(detach_all, module)?)?;
    module.add_function(wrap_pyfunction!(calibration_run, module)?)
}
