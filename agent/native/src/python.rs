//! The Python interface of the Rust core; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use rustc_hash::FxHashMap;

use crate::confined::{self, ChildCommand};
use crate::error::Error;
use crate::malloc;
use crate::modules;
use crate::process::{self, Method};
use crate::python_frames::Frames;
use crate::snapshot::Thread;
use crate::symbols::DebugSearch;

create_exception!(_native, NativeError, PyException);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        NativeError::new_err((error.kind.as_str(), error.detail))
    }
}

#[pyclass(frozen, get_all, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
struct RawThread {
    tid: u32,
    ns_tid: u32,
    comm: String,
    state: char,
    trust: &'static str,
    stack: u32,
    syscall: i32,
    argument: u64,
}

impl From<&Thread> for RawThread {
    fn from(thread: &Thread) -> Self {
        let raw = &thread.raw;
        Self {
            tid: raw.tid,
            ns_tid: raw.ns_tid,
            comm: raw.comm.clone(),
            state: raw.state,
            trust: thread.trust.as_str(),
            stack: thread.stack,
            syscall: raw.syscall,
            argument: raw.arg0,
        }
    }
}

#[pyclass(frozen, get_all)]
struct RawSnapshot {
    threads: Py<PyList>,
    stacks: Py<PyDict>,
    method: &'static str,
    copy_ns: u64,
    unwind_ns: u64,
    symbolize_ns: u64,
    unchanged: usize,
    retried: usize,
    sampled: usize,
    shallow: usize,
    notes: Vec<String>,
}

#[pyclass(frozen, get_all)]
pub(crate) struct ModuleInfo {
    path: String,
    deleted: bool,
    start: u64,
    build_id: Option<String>,
    symbols_from: &'static str,
    symbols_path: Option<PathBuf>,
    problem: Option<String>,
}

#[pyclass]
struct Process {
    /// The mutex makes the class `Sync`, as PyO3 requires. Only one snapshot can be taken at a time, because
    /// `take_snapshot` borrows the object mutably; the snapshot program has only one scratch buffer.
    inner: Mutex<process::Process>,
    /// The stacks as Python objects, cached by stack id.
    stacks: FxHashMap<u32, Py<PyTuple>>,
    frames: Frames,
    #[pyo3(get)]
    method: &'static str,
}

#[pymethods]
impl Process {
    #[new]
    #[pyo3(signature = (
        pid, *, method = "auto", debug_dirs = None, debug_files = None, inlines = false, kernel = false, fitted = None,
        most_bytes = None
    ))]
    #[allow(clippy::too_many_arguments)] // Python passes them as keywords
    fn new(
        py: Python<'_>,
        pid: u32,
        method: &str,
        debug_dirs: Option<Vec<PathBuf>>,
        debug_files: Option<HashMap<String, PathBuf>>,
        inlines: bool,
        kernel: bool,
        fitted: Option<Vec<u8>>,
        most_bytes: Option<u64>,
    ) -> PyResult<Self> {
        let method = match method {
            "auto" => Method::Auto,
            "bpf" => Method::Bpf,
            "bpf-nosleep" => Method::BpfNosleep,
            "procfs" => Method::Procfs,
            "ptrace" => Method::Ptrace,
            other => {
                return Err(PyValueError::new_err(format!(
                    "unknown method {other:?}: use auto, bpf, bpf-nosleep, procfs or ptrace"
                )));
            }
        };
        let dirs = debug_dirs.unwrap_or_else(|| vec![PathBuf::from("/usr/lib/debug")]);
        let mut search = DebugSearch::of_process(pid, dirs, debug_files.unwrap_or_default());
        search.reader = reader(py)?;
        let mut inner =
            py.detach(|| process::Process::new(pid, method, search, inlines, kernel, fitted.as_deref()))?;
        inner.limit(most_bytes.unwrap_or(u64::MAX));
        Ok(Self {
            method: inner.method(),
            inner: Mutex::new(inner),
            stacks: FxHashMap::default(),
            frames: Frames::default(),
        })
    }

    #[getter]
    fn fitted<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.relocated_program().map(|bytes| PyBytes::new(py, bytes))
    }

    fn take_snapshot(&mut self, py: Python<'_>) -> PyResult<RawSnapshot> {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        let snapshot = py.detach(|| inner.snapshot())?;
        let stacks = PyDict::new(py);
        let mut present = FxHashMap::default();
        for thread in &snapshot.threads {
            if let Entry::Vacant(entry) = present.entry(thread.stack) {
                let frames = self.stack(py, thread.stack)?;
                stacks.set_item(thread.stack, &frames)?;
                entry.insert(frames);
            }
        }
        let cached = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner).cached_frames();
        if self.stacks.len() > 2 * present.len() + 64 || self.frames.exceed(cached) {
            self.stacks = present;
            self.frames.remove_unused(py);
        }
        let threads = snapshot.threads.iter().map(|thread| Py::new(py, RawThread::from(thread)));
        let threads = threads.collect::<PyResult<Vec<_>>>()?;
        Ok(RawSnapshot {
            threads: PyList::new(py, threads)?.unbind(),
            stacks: stacks.unbind(),
            method: self.method,
            copy_ns: snapshot.copy.as_nanos() as u64,
            unwind_ns: snapshot.unwind.as_nanos() as u64,
            symbolize_ns: snapshot.symbolize.as_nanos() as u64,
            unchanged: snapshot.unchanged,
            retried: snapshot.retried,
            sampled: snapshot.sampled,
            shallow: snapshot.shallow,
            notes: snapshot.notes,
        })
    }

    fn run_counts(&mut self, py: Python<'_>, tids: Vec<u32>) -> HashMap<u32, u64> {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        py.detach(|| inner.run_counts(&tids)).into_iter().collect()
    }

    fn copied_run_counts(&mut self, tids: Vec<u32>) -> HashMap<u32, u64> {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.copied_run_counts(&tids).into_iter().collect()
    }

    fn modules(&mut self) -> Vec<ModuleInfo> {
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        inner.modules().all().iter().map(module_info).collect()
    }
}

impl Process {
    fn stack(&mut self, py: Python<'_>, id: u32) -> PyResult<Py<PyTuple>> {
        if let Some(known) = self.stacks.get(&id) {
            return Ok(known.clone_ref(py));
        }
        let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
        let frames = inner.frames(id).map_or(&[][..], |frames| frames);
        let stack = self.frames.stack(py, frames)?.unbind();
        self.stacks.insert(id, stack.clone_ref(py));
        Ok(stack)
    }
}

pub(crate) fn module_info(module: &modules::Module) -> ModuleInfo {
    ModuleInfo {
        path: module.path.clone(),
        deleted: module.deleted,
        start: module.start,
        build_id: module.elf.as_ref().and_then(|elf| elf.build_id()),
        symbols_from: module.symbols.source.as_str(),
        symbols_path: module.symbols.path.clone(),
        problem: module.problem.clone(),
    }
}

/// Return the command that starts the child that reads debug information.
pub(crate) fn reader(py: Python<'_>) -> PyResult<ChildCommand> {
    let interpreter: OsString = py.import("sys")?.getattr("executable")?.extract()?;
    Ok([
        interpreter,
        "-P".into(),
        "-s".into(),
        "-m".into(),
        "innoscope.target.symbols.confined_reader".into(),
    ]
    .into())
}

/// Run as a confined child, and exit without Python's cleanup, which needs privileges that the child has
/// dropped.
#[pyfunction]
fn serve_confined() {
    print_only_location_of_panics();
    let code = i32::from(confined::serve().is_err());
    // SAFETY: _exit only ends this process. The child has nothing else to do, and its output is flushed.
    unsafe { libc::_exit(code) }
}

/// Print only the location of a panic. The message may contain untrusted text: Python receives it in a
/// `PanicException`, and escapes it before logging.
#[pyfunction]
fn print_only_location_of_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if let Some(location) = panic.location() {
            eprintln!("innoscope: panic in the core at {location}");
        }
    }));
}

#[pyfunction]
fn limit_retained_memory() {
    malloc::limit_retained();
}

#[pyfunction]
fn become_confined(program: OsString, arguments: Vec<OsString>) -> PyResult<()> {
    Err(confined::become_program(&program, &arguments).into())
}

/// The module that Python imports as `innoscope._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NativeError", module.py().get_type::<NativeError>())?;
    module.add_class::<Process>()?;
    module.add_class::<RawSnapshot>()?;
    module.add_class::<RawThread>()?;
    module.add_class::<ModuleInfo>()?;
    module.add_function(wrap_pyfunction!(serve_confined, module)?)?;
    module.add_function(wrap_pyfunction!(become_confined, module)?)?;
    module.add_function(wrap_pyfunction!(print_only_location_of_panics, module)?)?;
    module.add_function(wrap_pyfunction!(limit_retained_memory, module)?)?;

    crate::python_features::register(module)?;
    crate::python_files::register(module)?;
    crate::python_frames::register(module)?;
    crate::python_hash::register(module)?;
    crate::python_history::register(module)?;
    crate::python_layout::register(module)?;
    crate::python_output::register(module)?;
    crate::python_packs::register(module)?;
    crate::python_probing::register(module)?;
    crate::python_samples::register(module)?;
    crate::python_statements::register(module)?;
    crate::python_waits::register(module)
}
