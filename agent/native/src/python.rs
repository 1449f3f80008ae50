//! The Python interface of the Rust core; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value. The booleans of ElfInfo are independent of each other.
#![allow(clippy::needless_pass_by_value, clippy::struct_excessive_bools)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsString;
use std::os::fd::IntoRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use rustc_hash::FxHashMap;

use crate::confined::{self, ChildCommand};
use crate::error::{Error, Kind};
use crate::process::{self, Method};
use crate::python_frames::{Frame, Frames};
use crate::snapshot::Thread;
use crate::symbols::{self, DebugSearch, ElfFile, SymbolTable};
use crate::{flamegraph, maps, memory, modules, pprof, probe};

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
    symbolise_ns: u64,
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
    /// The mutex allows only one snapshot at a time, because the snapshot program has one scratch buffer.
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
        if self.stacks.len() > 2 * present.len() + 64 {
            self.stacks = present;
            self.frames.clear();
        }
        let threads = snapshot.threads.iter().map(|thread| Py::new(py, RawThread::from(thread)));
        let threads = threads.collect::<PyResult<Vec<_>>>()?;
        Ok(RawSnapshot {
            threads: PyList::new(py, threads)?.unbind(),
            stacks: stacks.unbind(),
            method: self.method,
            copy_ns: snapshot.copy.as_nanos() as u64,
            unwind_ns: snapshot.unwind.as_nanos() as u64,
            symbolise_ns: snapshot.symbolise.as_nanos() as u64,
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
fn become_confined(program: OsString, arguments: Vec<OsString>) -> PyResult<()> {
    Err(confined::become_program(&program, &arguments).into())
}

#[pyfunction]
fn open_regular(path: PathBuf) -> PyResult<i32> {
    Ok(symbols::opening::regular(&path)?.into_raw_fd())
}

fn open_elf(path: &Path) -> PyResult<std::sync::Arc<ElfFile>> {
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

#[pyclass(frozen, get_all)]
struct Feature {
    works: bool,
    detail: String,
}

#[pymethods]
impl Feature {
    #[new]
    fn new(works: bool, detail: String) -> Self {
        Self { works, detail }
    }
}

/// Test a feature of this host without holding the GIL.
fn test(py: Python<'_>, feature: fn() -> (bool, String)) -> Feature {
    let (works, detail) = py.detach(feature);
    Feature { works, detail }
}

#[pyfunction]
fn probe_bpf(py: Python<'_>) -> Feature {
    test(py, || probe::bpf(true))
}

#[pyfunction]
fn probe_bpf_nosleep(py: Python<'_>) -> Feature {
    test(py, || probe::bpf(false))
}

#[pyfunction]
fn probe_procfs(py: Python<'_>) -> Feature {
    test(py, probe::procfs)
}

#[pyfunction]
fn probe_perf(py: Python<'_>) -> Feature {
    test(py, probe::perf)
}

#[pyfunction]
fn probe_profile_bpf(py: Python<'_>) -> Feature {
    test(py, probe::profile_bpf)
}

#[pyfunction]
fn probe_profile_perf(py: Python<'_>) -> Feature {
    test(py, probe::profile_perf)
}

#[pyfunction]
fn probe_profile_waits_perf(py: Python<'_>) -> Feature {
    test(py, probe::profile_waits_perf)
}

#[pyfunction]
fn probe_ptrace(py: Python<'_>) -> Feature {
    test(py, probe::ptrace)
}

#[pyfunction]
fn probe_uprobe_links(py: Python<'_>) -> Feature {
    test(py, probe::uprobe_links)
}

/// A stack to encode: any Python object with these attributes. Frames are innermost first.
#[derive(FromPyObject)]
struct PprofSample<'py> {
    frames: Vec<PyRef<'py, Frame>>,
    count: i64,
    labels: HashMap<String, String>,
}

/// The name and unit of the values in a profile: any Python object with these attributes.
#[derive(FromPyObject)]
struct SampleType {
    name: String,
    unit: String,
}

#[pyfunction]
#[pyo3(name = "pprof", signature = (samples, *, sample_type, taken_at_ns, duration_ns))]
fn encode_pprof<'py>(
    py: Python<'py>,
    samples: Vec<PprofSample<'py>>,
    sample_type: SampleType,
    taken_at_ns: i64,
    duration_ns: i64,
) -> PyResult<Bound<'py, PyBytes>> {
    let samples = samples
        .into_iter()
        .map(|PprofSample { frames, count, labels }| {
            let frames = frames.iter().map(|frame| frame.to_core(py)).collect::<PyResult<_>>()?;
            Ok(pprof::Sample { frames, count, labels: labels.into_iter().collect() })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let SampleType { name, unit } = sample_type;
    let encoded = py.detach(|| pprof::encode(samples, (&name, &unit), taken_at_ns, duration_ns));
    Ok(PyBytes::new(py, &encoded))
}

#[pyfunction]
#[pyo3(name = "flamegraph", signature = (folded, *, title, subtitle, count_name))]
fn draw_flamegraph(
    py: Python<'_>,
    folded: Vec<String>,
    title: String,
    subtitle: String,
    count_name: String,
) -> PyResult<String> {
    Ok(py.detach(|| flamegraph::draw(&folded, title, subtitle, count_name))?)
}

/// The module that Python imports as `innoscope._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("NativeError", module.py().get_type::<NativeError>())?;
    module.add_class::<Process>()?;
    module.add_class::<RawSnapshot>()?;
    module.add_class::<RawThread>()?;
    module.add_class::<Symbol>()?;
    module.add_class::<Feature>()?;
    module.add_class::<ModuleInfo>()?;
    module.add_class::<ElfInfo>()?;
    module.add_function(wrap_pyfunction!(serve_confined, module)?)?;
    module.add_function(wrap_pyfunction!(become_confined, module)?)?;
    module.add_function(wrap_pyfunction!(print_only_location_of_panics, module)?)?;
    module.add_function(wrap_pyfunction!(open_regular, module)?)?;
    module.add_function(wrap_pyfunction!(elf_info, module)?)?;
    module.add_function(wrap_pyfunction!(find_debug_file, module)?)?;
    module.add_function(wrap_pyfunction!(symbol_in_file, module)?)?;
    module.add_function(wrap_pyfunction!(symbol_in_process, module)?)?;
    module.add_function(wrap_pyfunction!(read_memory, module)?)?;
    module.add_function(wrap_pyfunction!(probe_bpf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_bpf_nosleep, module)?)?;
    module.add_function(wrap_pyfunction!(probe_procfs, module)?)?;
    module.add_function(wrap_pyfunction!(probe_perf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_profile_bpf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_profile_perf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_profile_waits_perf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_ptrace, module)?)?;
    module.add_function(wrap_pyfunction!(probe_uprobe_links, module)?)?;
    module.add_function(wrap_pyfunction!(encode_pprof, module)?)?;
    module.add_function(wrap_pyfunction!(draw_flamegraph, module)?)?;

    crate::python_frames::register(module)?;
    crate::python_history::register(module)?;
    crate::python_layout::register(module)?;
    crate::python_packs::register(module)?;
    crate::python_probing::register(module)?;
    crate::python_samples::register(module)?;
    crate::python_statements::register(module)
}
