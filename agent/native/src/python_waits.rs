//! The part of the Python interface for profiles of waits; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::os::fd::RawFd;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::PyList;
use rustc_hash::FxHashMap;

use crate::error::{Error, Result};
use crate::python_samples::{PyPlace, Samples, locked};
use crate::samples::programs::{self, ArgumentPlace, CommandPlaces, Target};
use crate::samples::{Place, switch_events, waits};
use crate::snapshot::bpf::BpfSource;

#[pyclass(frozen, get_all, eq)]
#[derive(PartialEq, Eq)]
struct ThreadTimes {
    tid: u32,
    comm: String,
    running_ns: u64,
    blocked_ns: u64,
    runnable_ns: u64,
}

#[pymethods]
impl ThreadTimes {
    #[new]
    fn new(tid: u32, comm: String, running_ns: u64, blocked_ns: u64, runnable_ns: u64) -> Self {
        Self { tid, comm, running_ns, blocked_ns, runnable_ns }
    }

    #[getter]
    fn wall_ns(&self) -> u64 {
        self.running_ns + self.blocked_ns + self.runnable_ns
    }
}

#[pyclass(frozen, get_all)]
struct Waits {
    tid: u32,
    place: Option<Py<PyPlace>>,
    count: u64,
    blocked_ns: u64,
    runnable_ns: u64,
}

#[pyclass(frozen, get_all)]
struct Settled {
    waits: Py<PyList>,
    threads: Py<PyList>,
    seen_ns: u64,
}

#[pyclass(frozen)]
struct OffCpu {
    inner: Mutex<programs::OffCpu>,
    /// Takes snapshots of threads that do not switch; None if this kernel does not support snapshots.
    source: Mutex<Option<BpfSource>>,
    #[pyo3(get)]
    snapshot_problem: Option<String>,
}

#[pymethods]
impl OffCpu {
    #[new]
    #[pyo3(signature = (pid, start_time, *, kernel = false, ring_bytes = 4 << 20, most_threads = 16384, commands = None, members = None))]
    #[allow(clippy::too_many_arguments)] // Python passes them as keywords
    fn new(
        py: Python<'_>,
        pid: u32,
        start_time: u64,
        kernel: bool,
        ring_bytes: u32,
        most_threads: u32,
        commands: Option<[(u32, Option<u64>); 5]>,
        members: Option<[u64; 3]>,
    ) -> PyResult<Self> {
        let commands = commands.map(|places| {
            let places = places.map(|(number, offset)| ArgumentPlace { number, offset });
            let [command, text, length, thd, prepared] = places;
            CommandPlaces { command, text, length, thd, prepared, members }
        });
        let target = Target { pid, start_time, kernel, ring_bytes };
        let (inner, source) = py.detach(|| -> Result<_> {
            Ok((programs::OffCpu::new(target, most_threads, commands)?, BpfSource::best(pid, kernel)))
        })?;
        let snapshot_problem = source.as_ref().err().map(|error: &Error| error.detail.clone());
        Ok(Self { inner: Mutex::new(inner), source: Mutex::new(source.ok()), snapshot_problem })
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

    fn set_statements(&self, every: u32) -> PyResult<()> {
        Ok(locked(&self.inner).set_statements(every)?)
    }

    fn statement_program(&self, name: &str) -> PyResult<RawFd> {
        Ok(locked(&self.inner).statement_program(name)?)
    }

    #[getter]
    fn hits(&self) -> PyResult<u64> {
        Ok(locked(&self.inner).hits()?)
    }

    fn take_snapshot(&self, py: Python<'_>, samples: &Samples) -> PyResult<()> {
        Ok(py.detach(|| match locked(&self.source).as_mut() {
            Some(source) => locked(&samples.inner).add_snapshot(source),
            None => Ok(()),
        })?)
    }

    fn end(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| locked(&self.inner).end())?)
    }

    fn settle(&self, py: Python<'_>, samples: &Samples, ended: u64) -> PyResult<Settled> {
        let result = py.detach(|| -> Result<_> {
            let accounts = locked(&self.inner).accounts()?;
            let mut source = locked(&self.source);
            let mut aggregator = locked(&samples.inner);
            Ok(WaitResult::of(aggregator.settle(source.as_mut(), &accounts, ended)?))
        })?;
        result.settled(py)
    }
}

#[pyclass(frozen)]
struct PerfOffCpu {
    inner: Mutex<switch_events::PerfOffCpu>,
}

#[pymethods]
impl PerfOffCpu {
    #[new]
    #[pyo3(signature = (pid, *, kernel = false, most = 1000, ring_bytes = 4 << 20))]
    fn new(py: Python<'_>, pid: u32, kernel: bool, most: u64, ring_bytes: usize) -> PyResult<Self> {
        let options = switch_events::Options { kernel, max_stacks: most, ring_bytes };
        let inner = py.detach(|| switch_events::PerfOffCpu::new(pid, options))?;
        Ok(Self { inner: Mutex::new(inner) })
    }

    #[getter]
    fn per_cpu(&self) -> bool {
        locked(&self.inner).per_cpu()
    }

    #[getter]
    fn lost(&self) -> u64 {
        locked(&self.inner).lost().0
    }

    #[getter]
    fn lost_switches(&self) -> u64 {
        locked(&self.inner).lost().1
    }

    #[getter]
    fn snapshot_problem(&self) -> Option<String> {
        locked(&self.inner).snapshot_problem()
    }

    fn begin(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(py.detach(|| locked(&self.inner).begin())?)
    }

    fn read(&self, py: Python<'_>, samples: &Samples) -> PyResult<()> {
        Ok(py.detach(|| locked(&samples.inner).read_switches(&mut locked(&self.inner)))?)
    }

    fn take_snapshot(&self, py: Python<'_>, samples: &Samples) -> PyResult<()> {
        Ok(py.detach(|| locked(&samples.inner).add_waiting(&mut locked(&self.inner)))?)
    }

    fn end(&self, py: Python<'_>) -> u64 {
        py.detach(|| locked(&self.inner).end())
    }

    fn settle(&self, py: Python<'_>, samples: &Samples) -> PyResult<Settled> {
        let result = py.detach(|| -> Result<_> {
            let mut aggregator = locked(&samples.inner);
            Ok(WaitResult::of(aggregator.settle_switches(&mut locked(&self.inner))?))
        })?;
        result.settled(py)
    }
}

/// A copy of the result of a profile of waits, so that it is converted to Python objects without holding a lock.
struct WaitResult {
    rows: FxHashMap<(u32, Option<Place>), waits::PlaceWaits>,
    threads: Vec<waits::ThreadTimes>,
    seen_ns: u64,
}

impl WaitResult {
    fn of(waits: &waits::Waits) -> Self {
        let seen_ns = waits.seen.blocked + waits.seen.runnable;
        Self { rows: waits.rows.clone(), threads: waits.times.clone(), seen_ns }
    }

    fn settled(self, py: Python<'_>) -> PyResult<Settled> {
        let Self { rows, threads, seen_ns } = self;
        let waits = rows.iter().map(|((tid, place), share)| {
            let waits = Waits {
                tid: *tid,
                place: place.as_ref().map(|place| Py::new(py, PyPlace::from(place))).transpose()?,
                count: share.waits,
                blocked_ns: share.ns.blocked,
                runnable_ns: share.ns.runnable,
            };
            Py::new(py, waits)
        });
        let waits = PyList::new(py, waits.collect::<PyResult<Vec<_>>>()?)?.unbind();
        let threads = threads.into_iter().map(|times| {
            let waited = times.waited;
            Py::new(
                py,
                ThreadTimes::new(times.tid, times.comm, times.running, waited.blocked, waited.runnable),
            )
        });
        let threads = PyList::new(py, threads.collect::<PyResult<Vec<_>>>()?)?.unbind();
        Ok(Settled { waits, threads, seen_ns })
    }
}

/// Add these classes to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ThreadTimes>()?;
    module.add_class::<Waits>()?;
    module.add_class::<Settled>()?;
    module.add_class::<OffCpu>()?;
    module.add_class::<PerfOffCpu>()
}
