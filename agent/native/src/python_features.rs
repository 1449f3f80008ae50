//! The part of the Python interface that tests what this host supports; agent/innoscope/_native.pyi documents it.

use pyo3::prelude::*;

use crate::probe;

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

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Feature>()?;
    module.add_function(wrap_pyfunction!(probe_bpf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_bpf_nosleep, module)?)?;
    module.add_function(wrap_pyfunction!(probe_procfs, module)?)?;
    module.add_function(wrap_pyfunction!(probe_perf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_profile_bpf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_profile_perf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_profile_waits_perf, module)?)?;
    module.add_function(wrap_pyfunction!(probe_ptrace, module)?)?;
    module.add_function(wrap_pyfunction!(probe_uprobe_links, module)?)
}
