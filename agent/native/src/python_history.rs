//! The part of the Python interface for the history; agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::os::fd::{IntoRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;

use crate::history::query::{self, Filter, Question, Value};
use crate::history::rows::{self, Row, Snapshot};
use crate::history::schema::{self, TEXTS};
use crate::history::{self, dictionaries, file};
use crate::python::NativeError;

impl From<history::Error> for PyErr {
    fn from(error: history::Error) -> Self {
        match error {
            history::Error::Os(error) => error.into(),
            history::Error::Damaged(why) => NativeError::new_err(("damaged", why)),
        }
    }
}

/// The texts of a shape, and the hash of its stack.
type PyShape = ([Option<String>; TEXTS.len()], i64);
/// Time, weight, and the columns of the rows: thread, shape, connection, blocker.
type PySnapshot = (i64, f64, Vec<i32>, Vec<u32>, Vec<Option<i64>>, Vec<Option<i64>>);

fn snapshot((at, weight, tids, shapes, connections, blockers): PySnapshot) -> PyResult<Snapshot> {
    let count = tids.len();
    if [shapes.len(), connections.len(), blockers.len()] != [count; 3] {
        return Err(PyValueError::new_err("columns of different lengths"));
    }
    let ids = connections.into_iter().zip(blockers);
    let rows = tids
        .into_iter()
        .zip(shapes)
        .zip(ids)
        .map(|((tid, shape), (connection, blocker))| Row { tid, shape, connection, blocker })
        .collect();
    Ok(Snapshot { at, weight, rows })
}

#[pyclass(frozen)]
struct HistoryHour {
    inner: Mutex<rows::Hour>,
}

impl HistoryHour {
    fn lock(&self) -> MutexGuard<'_, rows::Hour> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl HistoryHour {
    #[new]
    fn new() -> Self {
        Self { inner: Mutex::default() }
    }

    fn add(&self, server: &str, shapes: Vec<PyShape>, snapshots: Vec<PySnapshot>) -> PyResult<()> {
        let snapshots = snapshots.into_iter().map(snapshot).collect::<PyResult<Vec<_>>>()?;
        let shapes =
            shapes.iter().map(|(texts, stack)| (texts.each_ref().map(|text| text.as_deref()), *stack));
        if self.lock().add(server, shapes, &snapshots) {
            Ok(())
        } else {
            Err(PyValueError::new_err("a row refers to a missing shape"))
        }
    }

    fn add_stack(&self, stack: i64, functions: Vec<String>) {
        let bytes = functions.iter().map(|name| name.len() + 40).sum();
        self.lock().add_stack(stack, || functions, bytes);
    }

    fn add_digest(&self, digest: &str, text: &str) {
        self.lock().add_digest(digest, text);
    }

    #[getter]
    fn rows(&self) -> usize {
        self.lock().rows()
    }

    #[getter]
    fn empty(&self) -> bool {
        self.lock().is_empty()
    }

    #[getter]
    fn used_bytes(&self) -> usize {
        self.lock().bytes()
    }

    fn write(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        py.detach(|| {
            let hour = self.lock();
            let path = |table: &str| folder.join(format!("{table}.parquet"));
            hour.write_stacks(&path("stacks"))?;
            hour.write_digests(&path("digests"))?;
            hour.write_snapshots(&path("snapshots"))?;
            if hour.rows() > 0 {
                hour.write_samples(&path("samples"))?;
            }
            Ok::<_, history::Error>(())
        })?;
        Ok(())
    }

    fn clear(&self, written: bool) {
        self.lock().clear(written);
    }
}

fn schema_of(table: &str) -> PyResult<&'static str> {
    schema::of_table(table).ok_or_else(|| PyValueError::new_err(format!("no such table: {table}")))
}

#[pyfunction]
fn history_check(py: Python<'_>, table: &str, path: PathBuf) -> PyResult<u64> {
    let message = schema_of(table)?;
    Ok(py.detach(|| file::check(&path, message))?)
}

#[pyfunction]
fn history_open(py: Python<'_>, table: &str, path: PathBuf) -> PyResult<RawFd> {
    let message = schema_of(table)?;
    let (file, _) = py.detach(|| file::open_checked(&path, message))?;
    Ok(file.into_raw_fd())
}

#[pyfunction]
fn history_merge(py: Python<'_>, table: &str, inputs: Vec<PathBuf>, output: PathBuf) -> PyResult<()> {
    let message = schema_of(table)?;
    Ok(py.detach(|| file::merge(&inputs, &output, message))?)
}

/// Placeholder for the other values of a column that has too many distinct values.
const OTHER: &str = "(other values)";

#[derive(IntoPyObject)]
enum PyValue {
    Int(i64),
    Text(String),
}

/// The values of a group, the sum of its weights in seconds, and its number of rows.
type PyGroup = (Vec<Option<PyValue>>, f64, u64);
/// The groups, the total of the rest, the first and the last time, and the files that could not be read.
type PyAnswer = (Vec<PyGroup>, (f64, u64), Option<(i64, i64)>, Vec<(PathBuf, String)>);

fn values(values: Vec<Value>) -> Vec<Option<PyValue>> {
    values
        .into_iter()
        .map(|value| match value {
            Value::Null => None,
            Value::Int(number) => Some(PyValue::Int(number)),
            Value::Text(text) => Some(PyValue::Text(text)),
            Value::Other => Some(PyValue::Text(OTHER.to_owned())),
        })
        .collect()
}

#[pyfunction]
#[pyo3(signature = (table, files, *, span, by, filters, most_groups))]
fn history_group(
    py: Python<'_>,
    table: &str,
    files: Vec<PathBuf>,
    span: (i64, i64),
    by: Vec<String>,
    filters: Vec<(String, Vec<Option<String>>, bool)>,
    most_groups: usize,
) -> PyResult<PyAnswer> {
    let message = schema_of(table)?;
    let filters =
        filters.into_iter().map(|(column, values, prefix)| Filter { column, values, prefix }).collect();
    let question = Question { span, by, filters, most_groups };
    let mut failed = Vec::new();
    let answer = py.detach(|| query::group(&files, message, &question, collect(&mut failed)));
    let groups =
        answer.groups.into_iter().map(|(key, total)| (values(key), total.weight, total.rows)).collect();
    Ok((groups, (answer.rest.weight, answer.rest.rows), answer.seen, failed))
}

type Failed = Vec<(PathBuf, String)>;

fn collect(failed: &mut Failed) -> impl FnMut(&Path, history::Error) {
    |path, error| failed.push((path.to_owned(), error.to_string()))
}

#[pyfunction]
fn history_stacks(
    py: Python<'_>,
    files: Vec<PathBuf>,
    wanted: Vec<i64>,
) -> (FxHashMap<i64, Vec<String>>, Failed) {
    let mut failed = Vec::new();
    let found = py.detach(|| dictionaries::stacks(&files, &wanted, collect(&mut failed)));
    (found, failed)
}

#[pyfunction]
fn history_digests(
    py: Python<'_>,
    files: Vec<PathBuf>,
    wanted: Vec<String>,
) -> (FxHashMap<String, String>, Failed) {
    let mut failed = Vec::new();
    let found = py.detach(|| dictionaries::digests(&files, &wanted, collect(&mut failed)));
    (found, failed)
}

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<HistoryHour>()?;
    module.add("HISTORY_TEXTS", TEXTS.to_vec())?;
    module.add_function(wrap_pyfunction!(history_check, module)?)?;
    module.add_function(wrap_pyfunction!(history_open, module)?)?;
    module.add_function(wrap_pyfunction!(history_merge, module)?)?;
    module.add_function(wrap_pyfunction!(history_group, module)?)?;
    module.add_function(wrap_pyfunction!(history_stacks, module)?)?;
    module.add_function(wrap_pyfunction!(history_digests, module)?)
}
