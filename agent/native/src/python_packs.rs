//! The part of the Python interface for symbol packs; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Error, Kind};
use crate::python::NativeError;
use crate::symbols::ElfFile;
use crate::symbols::pack::{self, PackError, Sealed};

impl From<PackError> for PyErr {
    fn from(error: PackError) -> Self {
        let what = format!("symbol pack {}: {}", error.path.display(), error.reason);
        NativeError::new_err(("pack", what, error.remedy))
    }
}

#[pyclass(frozen)]
struct Pack {
    inner: pack::Pack,
}

#[pymethods]
impl Pack {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let inner = py.detach(|| Sealed::open(&path).and_then(Sealed::unpack))?;
        Ok(Self { inner })
    }

    #[staticmethod]
    fn of_build(py: Python<'_>, build_id: &str) -> PyResult<Option<Self>> {
        let found = py.detach(|| pack::find(&pack::folder(), build_id));
        Ok(found.transpose()?.map(|inner| Self { inner }))
    }

    #[getter]
    fn path(&self) -> &OsStr {
        self.inner.path.as_os_str()
    }

    #[getter]
    fn build_id(&self) -> &str {
        &self.inner.build_id
    }

    #[getter]
    fn functions(&self) -> usize {
        self.inner.functions
    }

    #[getter]
    fn variables(&self) -> usize {
        self.inner.variables
    }

    #[getter]
    fn size(&self) -> u64 {
        self.inner.bytes
    }

    #[getter]
    fn unpacked_size(&self) -> u64 {
        self.inner.unpacked
    }

    #[getter]
    fn about<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.about)
    }

    #[getter]
    fn layout<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.layout)
    }
}

#[pyfunction]
fn pack_folder() -> OsString {
    pack::folder().into_os_string()
}

#[pyfunction]
fn find_pack(py: Python<'_>, build_id: &str) -> PyResult<Option<OsString>> {
    let found = py.detach(|| Sealed::find(&pack::folder(), build_id));
    Ok(found.transpose()?.map(|sealed| sealed.path().as_os_str().to_owned()))
}

#[pyfunction]
fn pack_payload(
    py: Python<'_>,
    path: PathBuf,
    about: Vec<u8>,
    layout: Vec<u8>,
) -> PyResult<Bound<'_, PyBytes>> {
    let payload = py.detach(|| {
        let elf = ElfFile::open(&path).map_err(|error| Error::new(Kind::Elf, error.to_string()))?;
        let failed = |reason| Error::new(Kind::Elf, format!("{}: {reason}", path.display()));
        pack::payload(&elf, &about, &layout).map_err(failed)
    })?;
    Ok(PyBytes::new(py, &payload))
}

#[pyfunction]
fn pack_seal<'py>(
    py: Python<'py>,
    build_id: &str,
    compressed: &[u8],
    unpacked: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let data = pack::seal(build_id, compressed, unpacked).map_err(|reason| Error::new(Kind::Elf, reason))?;
    Ok(PyBytes::new(py, &data))
}

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Pack>()?;
    module.add("PACK_FORMAT", pack::FORMAT)?;
    module.add_function(wrap_pyfunction!(pack_folder, module)?)?;
    module.add_function(wrap_pyfunction!(find_pack, module)?)?;
    module.add_function(wrap_pyfunction!(pack_payload, module)?)?;
    module.add_function(wrap_pyfunction!(pack_seal, module)?)
}
