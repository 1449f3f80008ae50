//! The part of the Python interface for profiles; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::error::{Error, Result};
use crate::python::{ModuleInfo, PyFrame, module_info, py_frame, reader};
use crate::samples::programs::{self, Target};
use crate::samples::{self, Place, SymbolOptions};
use crate::snapshot::bpf::BpfSource;
use crate::symbols::DebugSearch;

/// Stack id, trust, system call, file descriptor.
type PyPlace = (u32, &'static str, i32, i32);

fn py_place(place: &Place) -> PyPlace {
    (place.stack, place.trust.as_str(), place.syscall, place.file)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pyclass(frozen)]
struct Samples {
    inner: Mutex<samples::Samples>,
}

#[pymethods]
impl Samples {
    #[new]
    #[pyo3(signature = (pid, ring, *, debug_dirs = None, debug_files = None, inlines = false, kernel = false, file_calls = None))]
    #[allow(clippy::too_many_arguments)] // Python passes them by keyword
    fn new(
        py: Python<'_>,
        pid: u32,
        ring: RawFd,
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

    fn read(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(py.detach(|| locked(&self.inner).read())?)
    }

    fn counts(&self) -> Vec<(u32, u32, PyPlace, u64, u64)> {
        let inner = locked(&self.inner);
        let counts = inner.counts().iter();
        counts
            .map(|((kind, tid, place), count)| (*kind, *tid, py_place(place), count.count, count.weight))
            .collect()
    }

    fn frames(&self, stack: u32) -> Vec<PyFrame> {
        locked(&self.inner).frames(stack).map(py_frame).collect()
    }

    fn comms(&self) -> HashMap<u32, String> {
        locked(&self.inner).comms().iter().map(|(tid, comm)| (*tid, comm.clone())).collect()
    }

    fn modules(&self) -> Vec<ModuleInfo> {
        locked(&self.inner).modules().all().iter().map(module_info).collect()
    }

    #[getter]
    fn taken(&self) -> (u64, u64) {
        locked(&self.inner).taken()
    }
}

#[pyclass(frozen)]
struct OnCpu {
    inner: Mutex<programs::OnCpu>,
}

#[pymethods]
impl OnCpu {
    #[new]
    #[pyo3(signature = (pid, start_time, *, kernel = false, ring_bytes = 4 << 20))]
    fn new(py: Python<'_>, pid: u32, start_time: u64, kernel: bool, ring_bytes: u32) -> PyResult<Self> {
        let target = Target { pid, start_time, kernel, ring_bytes };
        let inner = py.detach(|| programs::OnCpu::new(target))?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    fn begin(&self, py: Python<'_>, period_ns: u64) -> PyResult<()> {
        Ok(py.detach(|| locked(&self.inner).begin(period_ns))?)
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

/// A thread: id, name, ns on a CPU, ns blocked, ns runnable.
type PyTimes = (u32, String, u64, u64, u64);
/// The waits of a thread at a place: thread id, place, number of waits, ns blocked, ns runnable.
type PyWait = (u32, Option<PyPlace>, u64, u64, u64);

#[pyclass(frozen)]
struct OffCpu {
    inner: Mutex<programs::OffCpu>,
    /// Takes snapshots of threads that do not switch; None if this kernel does not support it.
    source: Mutex<Option<BpfSource>>,
    #[pyo3(get)]
    cannot_look: Option<String>,
}

#[pymethods]
impl OffCpu {
    #[new]
    #[pyo3(signature = (pid, start_time, *, kernel = false, ring_bytes = 4 << 20, most_threads = 16384))]
    fn new(
        py: Python<'_>,
        pid: u32,
        start_time: u64,
        kernel: bool,
        ring_bytes: u32,
        most_threads: u32,
    ) -> PyResult<Self> {
        let target = Target { pid, start_time, kernel, ring_bytes };
        let (inner, source) = py.detach(|| -> Result<_> {
            Ok((programs::OffCpu::new(target, most_threads)?, BpfSource::new(pid, kernel, None)))
        })?;
        let cannot_look = source.as_ref().err().map(|error: &Error| error.detail.clone());
        Ok(Self { inner: Mutex::new(inner), source: Mutex::new(source.ok()), cannot_look })
    }

    #[getter]
    fn ring(&self) -> PyResult<RawFd> {
        Ok(locked(&self.inner).ring()?)
    }

    #[getter]
    fn lost(&self) -> PyResult<u64> {
        Ok(locked(&self.inner).lost()?)
    }

    fn follow(&self, py: Python<'_>, most: u64) -> PyResult<()> {
        Ok(py.detach(|| locked(&self.inner).follow(most))?)
    }

    fn begin(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| locked(&self.inner).begin())?)
    }

    fn set_most(&self, most: u64) -> PyResult<()> {
        Ok(locked(&self.inner).set_max_stacks(most)?)
    }

    fn look(&self, py: Python<'_>, samples: &Samples) -> PyResult<()> {
        Ok(py.detach(|| match locked(&self.source).as_mut() {
            Some(source) => locked(&samples.inner).add_snapshot(source),
            None => Ok(()),
        })?)
    }

    fn end(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| locked(&self.inner).end())?)
    }

    fn settle(
        &self,
        py: Python<'_>,
        samples: &Samples,
        ended: u64,
    ) -> PyResult<(Vec<PyWait>, Vec<PyTimes>, u64)> {
        py.detach(|| {
            let accounts = locked(&self.inner).accounts()?;
            let mut source = locked(&self.source);
            let mut aggregator = locked(&samples.inner);
            let waits = aggregator.settle(source.as_mut(), &accounts, ended)?;
            let rows = waits.rows.iter().map(|((tid, place), share)| {
                (*tid, place.as_ref().map(py_place), share.waits, share.ns.blocked, share.ns.runnable)
            });
            let times = waits.times.iter().map(|times| {
                (times.tid, times.comm.clone(), times.running, times.waited.blocked, times.waited.runnable)
            });
            Ok((rows.collect(), times.collect(), waits.seen.blocked + waits.seen.runnable))
        })
    }
}

/// Add these classes to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Samples>()?;
    module.add_class::<OnCpu>()?;
    module.add_class::<OffCpu>()
}
