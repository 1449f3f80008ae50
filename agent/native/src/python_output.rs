//! The part of the Python interface for output formats; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustc_hash::FxHashMap;

use crate::python_frames::Frame;
use crate::{flamegraph, names, pprof};

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
    let mut converted = FxHashMap::default();
    let samples = samples
        .into_iter()
        .map(|PprofSample { frames, count, labels }| {
            let frames =
                frames.iter().map(|frame| to_core(py, frame, &mut converted)).collect::<PyResult<_>>()?;
            Ok(pprof::Sample { frames, count, labels: labels.into_iter().collect() })
        })
        .collect::<PyResult<Vec<_>>>()?;
    let SampleType { name, unit } = sample_type;
    let encoded = py.detach(|| pprof::encode(samples, (&name, &unit), taken_at_ns, duration_ns));
    Ok(PyBytes::new(py, &encoded))
}

/// Convert a frame, or return the earlier result for the same object: stacks share frames, and frames share names.
fn to_core(
    py: Python<'_>,
    frame: &PyRef<'_, Frame>,
    converted: &mut FxHashMap<*mut ffi::PyObject, names::Frame>,
) -> PyResult<names::Frame> {
    if let Some(known) = converted.get(&frame.as_ptr()) {
        return Ok(known.clone());
    }
    let new = frame.to_core(py)?;
    converted.insert(frame.as_ptr(), new.clone());
    Ok(new)
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

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_pprof, module)?)?;
    module.add_function(wrap_pyfunction!(draw_flamegraph, module)?)
}
