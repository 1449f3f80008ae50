//! The part of the Python interface for profiles; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::digest::{Context, Words};
use crate::python::{ModuleInfo, module_info, reader};
use crate::python_frames::Frames;
use crate::samples::events;
use crate::samples::programs::{self, Target};
use crate::samples::sampled_statements::{SampledStatements, Statement};
use crate::samples::{self, Place, SymbolOptions};
use crate::symbols::DebugSearch;

#[pyclass(frozen, get_all, eq, hash, name = "Place")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct PyPlace {
    stack: u32,
    trust: &'static str,
    syscall: i32,
    file: i32,
}

impl From<&Place> for PyPlace {
    fn from(place: &Place) -> Self {
        Self { stack: place.stack, trust: place.trust.as_str(), syscall: place.syscall, file: place.file }
    }
}

#[pyclass(frozen, get_all)]
struct Count {
    kind: u32,
    tid: u32,
    place: Py<PyPlace>,
    records: u64,
    weight: u64,
}

#[pyclass(frozen, get_all)]
struct Taken {
    records: u64,
    bytes: u64,
}

/// Lock a mutex, even if a thread panicked while it held the mutex.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pyclass(frozen)]
pub(crate) struct Samples {
    pub(crate) inner: Mutex<samples::Samples>,
}

#[pymethods]
impl Samples {
    #[new]
    #[pyo3(signature = (pid, ring, *, debug_dirs = None, debug_files = None, inlines = false, kernel = false, file_calls = None))]
    #[allow(clippy::too_many_arguments)] // Python passes them as keywords
    fn new(
        py: Python<'_>,
        pid: u32,
        ring: Option<RawFd>,
        debug_dirs: Option<Vec<PathBuf>>,
        debug_files: Option<HashMap<String, PathBuf>>,
        inlines: bool,
        kernel: bool,
        file_calls: Option<Vec<i32>>,
    ) -> PyResult<Self> {
        let dirs = debug_dirs.unwrap_or_else(|| vec![PathBuf::from("/usr/lib/debug")]);
        let mut search = DebugSearch::of_process(pid, dirs, debug_files.unwrap_or_default());
        search.reader = reader(py)?;
        let file_calls = file_calls.unwrap_or_default().into_iter().collect();
        let symbol_options = SymbolOptions { search, inlines, kernel, file_calls };
        let inner = py.detach(|| samples::Samples::new(pid, ring, symbol_options))?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    #[pyo3(signature = (events = None))]
    fn read(&self, py: Python<'_>, events: Option<&PerfOnCpu>) -> PyResult<usize> {
        Ok(py.detach(|| match events {
            Some(events) => Ok(locked(&self.inner).read_events(&mut locked(&events.inner))),
            None => locked(&self.inner).read(),
        })?)
    }

    fn collect_statements(&self, version: u32, mysql_9: bool, max_chars: usize) {
        let words = if mysql_9 { Words::Mysql9 } else { Words::Mysql8 };
        let context = Context { version, words, certain: false };
        locked(&self.inner).collect_statements(SampledStatements::new(context, max_chars));
    }

    fn take_statements(&self, py: Python<'_>) -> PyResult<Vec<SampledStatement>> {
        let taken = locked(&self.inner).take_statements();
        taken.into_iter().map(|one| SampledStatement::of(py, one)).collect()
    }

    fn prepared_digest(&self, connection: u32, number: u32) -> Option<(String, String)> {
        let digest = locked(&self.inner).prepared_digest((connection, number))?;
        Some((digest.text.clone(), digest.newest.clone()))
    }

    #[getter]
    fn missing_statements(&self) -> (usize, u64) {
        locked(&self.inner).missing_statements()
    }

    fn counts(&self, py: Python<'_>) -> PyResult<Vec<Count>> {
        let inner = locked(&self.inner);
        let counts = inner.counts().iter().map(|((kind, tid, place), count)| {
            let place = Py::new(py, PyPlace::from(place))?;
            Ok(Count { kind: *kind, tid: *tid, place, records: count.count, weight: count.weight })
        });
        counts.collect()
    }

    fn frames<'py>(&self, py: Python<'py>, stack: u32) -> PyResult<Bound<'py, PyTuple>> {
        let frames: Vec<_> = locked(&self.inner).frames(stack).cloned().collect();
        Frames::default().stack(py, &frames)
    }

    fn comms(&self) -> HashMap<u32, String> {
        locked(&self.inner).comms().iter().map(|(tid, comm)| (*tid, comm.clone())).collect()
    }

    fn modules(&self) -> Vec<ModuleInfo> {
        locked(&self.inner).modules().all().iter().map(module_info).collect()
    }

    #[getter]
    fn notes(&self) -> Vec<String> {
        locked(&self.inner).problems().collect()
    }

    #[getter]
    fn taken(&self) -> Taken {
        let (records, bytes) = locked(&self.inner).taken();
        Taken { records, bytes }
    }
}

#[pyclass(frozen, get_all)]
struct SampledStatement {
    tid: u32,
    command: u32,
    digest: Option<(String, String)>,
    prepared: Option<(u32, u32)>,
    began: u64,
    ended: u64,
    blocked_ns: u64,
    runnable_ns: u64,
    waits: Vec<(Option<Py<PyPlace>>, u64)>,
}

impl SampledStatement {
    fn of(py: Python<'_>, statement: Statement) -> PyResult<Self> {
        let Statement { tid, command, digest, prepared, end, waits } = statement;
        let waits = waits.iter().filter(|(_, ns)| ns.blocked > 0).map(|(place, ns)| {
            let place = place.as_ref().map(|place| Py::new(py, PyPlace::from(place))).transpose()?;
            Ok((place, ns.blocked))
        });
        Ok(Self {
            tid,
            command,
            digest: digest.map(|digest| (digest.text.clone(), digest.newest.clone())),
            prepared,
            began: end.began,
            ended: end.ended,
            blocked_ns: end.waited.blocked,
            runnable_ns: end.waited.runnable,
            waits: waits.collect::<PyResult<_>>()?,
        })
    }
}

#[pyclass(frozen)]
struct OnCpu {
    inner: Mutex<programs::OnCpu>,
}

#[pymethods]
impl OnCpu {
    #[new]
    #[pyo3(signature = (pid, start_time, period_ns, *, kernel = false, ring_bytes = 4 << 20))]
    fn new(
        py: Python<'_>,
        pid: u32,
        start_time: u64,
        period_ns: u64,
        kernel: bool,
        ring_bytes: u32,
    ) -> PyResult<Self> {
        let target = Target { pid, start_time, kernel, ring_bytes };
        let inner = py.detach(|| programs::OnCpu::new(target, period_ns))?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| locked(&self.inner).begin())?)
    }

    #[getter]
    fn ring(&self) -> PyResult<RawFd> {
        Ok(locked(&self.inner).ring()?)
    }

    #[getter]
    fn lost(&self) -> PyResult<u64> {
        Ok(locked(&self.inner).lost()?)
    }

    fn end(&self, py: Python<'_>) {
        py.detach(|| locked(&self.inner).end());
    }
}

#[pyclass(frozen)]
struct PerfOnCpu {
    inner: Mutex<events::PerfOnCpu>,
}

#[pymethods]
impl PerfOnCpu {
    #[new]
    #[pyo3(signature = (pid, period_ns, *, kernel = false, ring_bytes = 2 << 20))]
    fn new(py: Python<'_>, pid: u32, period_ns: u64, kernel: bool, ring_bytes: usize) -> PyResult<Self> {
        let options = events::Options { period_ns, kernel, ring_bytes };
        let inner = py.detach(|| events::PerfOnCpu::new(pid, options))?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    #[getter]
    fn per_cpu(&self) -> bool {
        locked(&self.inner).mode().per_cpu
    }

    #[getter]
    fn in_kernel(&self) -> bool {
        locked(&self.inner).mode().in_kernel
    }

    #[getter]
    fn lost(&self) -> u64 {
        locked(&self.inner).lost()
    }

    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        Ok(py.detach(|| locked(&self.inner).begin())?)
    }

    fn end(&self, py: Python<'_>) {
        py.detach(|| locked(&self.inner).end());
    }
}

/// Add these classes to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Samples>()?;
    module.add_class::<PyPlace>()?;
    module.add_class::<Count>()?;
    module.add_class::<Taken>()?;
    module.add_class::<SampledStatement>()?;
    module.add_class::<OnCpu>()?;
    module.add_class::<PerfOnCpu>()
}
