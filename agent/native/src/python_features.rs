//! The part of the Python interface that detects features of this host; agent/innoscope/_native.pyi documents it.

use pyo3::exceptions::PyValueError;
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

#[pyfunction]
fn detect(py: Python<'_>, feature: &str) -> PyResult<Feature> {
    let test: fn() -> (bool, String) = match feature {
        "bpf" => || probe::bpf(true),
        "bpf-nosleep" => || probe::bpf(false),
        "procfs" => probe::procfs,
        "perf" => probe::perf,
        "profile-bpf" => probe::profile_bpf,
        "profile-perf" => probe::profile_perf,
        "profile-waits-perf" => probe::profile_waits_perf,
        "uprobe-links" => probe::uprobe_links,
        "uprobe-events" => probe::uprobe_events,
        "ptrace" => probe::ptrace,
        other => return Err(PyValueError::new_err(format!("unknown feature {other:?}"))),
    };
    let (works, detail) = py.detach(test);
    Ok(Feature { works, detail })
}

/// Add this class and function to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Feature>()?;
    module.add_function(wrap_pyfunction!(detect, module)?)
}
