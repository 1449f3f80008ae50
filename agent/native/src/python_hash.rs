//! The part of the Python interface for hashes; agent/innoscope/_native.pyi documents it.

use blake2s_simd::{OUTBYTES, Params};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[pyfunction]
#[pyo3(signature = (data, *, size))]
fn blake2s<'py>(py: Python<'py>, data: &[u8], size: usize) -> PyResult<Bound<'py, PyBytes>> {
    if !(1..=OUTBYTES).contains(&size) {
        return Err(PyValueError::new_err(format!("size must be between 1 and {OUTBYTES}")));
    }
    let hash = py.detach(|| Params::new().hash_length(size).hash(data));
    Ok(PyBytes::new(py, hash.as_bytes()))
}

/// Add these functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(blake2s, module)?)
}
