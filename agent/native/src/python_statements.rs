//! The part of the Python interface for statements: their digests, and reading them from a server's memory.
//! agent/innoscope/_native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::digest::{self, Context, Words};
use crate::python_layout::Member;
use crate::statements::{self, Arrays, Field, Layout, Reader, Walk};

#[pyclass(frozen, get_all, eq, hash)]
#[derive(PartialEq, Eq, Hash)]
struct Command {
    thd: u64,
    connection: u64,
    number: u64,
    query: u64,
    start: u64,
    length: u64,
}

#[pymethods]
impl Command {
    #[new]
    fn new(thd: u64, connection: u64, number: u64, query: u64, start: u64, length: u64) -> Self {
        Self { thd, connection, number, query, start, length }
    }
}

impl From<statements::Command> for Command {
    fn from(command: statements::Command) -> Self {
        let statements::Command { thd, connection, number, query, start, length } = command;
        Self { thd, connection, number, query, start, length }
    }
}

impl From<&Command> for statements::Command {
    fn from(command: &Command) -> Self {
        let Command { thd, connection, number, query, start, length } = *command;
        Self { thd, connection, number, query, start, length }
    }
}

#[pyclass(frozen, get_all)]
struct StatementDetails {
    text: Option<Py<PyBytes>>,
    digest: Option<(String, String)>,
    user: Option<String>,
    schema: Option<String>,
}

#[pyclass]
struct StatementReader {
    inner: Reader,
}

#[pymethods]
impl StatementReader {
    #[new]
    #[pyo3(signature = (pid, *, walk, members, roots, version, mysql_9, max_chars, arrays = None))]
    #[allow(clippy::too_many_arguments)] // Python passes them as keywords
    fn new(
        pid: u32,
        walk: &str,
        members: HashMap<String, PyRef<'_, Member>>,
        roots: HashMap<String, u64>,
        version: u32,
        mysql_9: bool,
        max_chars: usize,
        arrays: Option<u64>,
    ) -> PyResult<Self> {
        let places = Places { members, roots };
        let layout = Layout {
            thread: places.field("thread")?,
            connection: places.field("connection")?,
            command: places.field("command")?,
            query: places.field("query")?,
            text: places.field("text")?,
            length: places.field("length")?,
            user: places.offsets("user")?,
            schema: places.offsets("schema")?,
        };
        let walk = places.walk(walk, arrays)?;
        let words = if mysql_9 { Words::Mysql9 } else { Words::Mysql8 };
        let context = Context { version, words, certain: false };
        Ok(Self { inner: Reader::new(pid, layout, walk, context, max_chars) })
    }

    fn find(&mut self, py: Python<'_>, known: Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let inner = &mut self.inner;
        let scan = py.detach(|| inner.scan())?;
        Ok(inner.choose_busy(scan, |tid| known.contains(tid).unwrap_or(false)))
    }

    fn choose(&mut self, tids: Vec<u32>) {
        self.inner.choose(&tids.into_iter().collect());
    }

    fn commands(&self, py: Python<'_>) -> PyResult<HashMap<u32, Command>> {
        let found = py.detach(|| self.inner.commands())?;
        Ok(found.into_iter().map(|(tid, command)| (tid, command.into())).collect())
    }

    fn details(
        &mut self,
        py: Python<'_>,
        commands: Vec<PyRef<'_, Command>>,
        with_text: bool,
    ) -> PyResult<Vec<StatementDetails>> {
        let commands: Vec<statements::Command> = commands.iter().map(|one| (&**one).into()).collect();
        let inner = &mut self.inner;
        let found = py.detach(|| inner.details(&commands, with_text))?;
        let details = found.into_iter().map(|one| StatementDetails {
            text: one.text.map(|text| PyBytes::new(py, &text).unbind()),
            digest: one.digest.map(|digest| (digest.text.clone(), digest.newest.clone())),
            user: one.user,
            schema: one.schema,
        });
        Ok(details.collect())
    }
}

/// The members and variables of a layout, by name.
struct Places<'py> {
    members: HashMap<String, PyRef<'py, Member>>,
    roots: HashMap<String, u64>,
}

impl Places<'_> {
    fn offsets(&self, name: &str) -> PyResult<Vec<u64>> {
        let member = self.members.get(name).ok_or_else(|| missing(name))?;
        let offsets = &member.inner.offsets;
        if offsets.is_empty() { Err(missing(name)) } else { Ok(offsets.clone()) }
    }

    fn field(&self, name: &str) -> PyResult<Field> {
        let offset = self.offsets(name)?[0];
        let size = self.members[name].inner.size;
        if size > 8 {
            return Err(PyValueError::new_err(format!("{name} has {size} bytes")));
        }
        Ok(Field { offset, size: size as usize })
    }

    fn root(&self, name: &str) -> PyResult<u64> {
        self.roots.get(name).copied().ok_or_else(|| missing(name))
    }

    fn walk(&self, walk: &str, arrays: Option<u64>) -> PyResult<Walk> {
        let first = self.root("first")?;
        Ok(match walk {
            "linked" => Walk::Linked {
                first: first.wrapping_add(self.offsets("first")?[0]),
                next: self.offsets("next")?[0],
            },
            "tree" => Walk::Tree { first },
            "arrays" => Walk::Arrays(Arrays {
                first,
                arrays: arrays.ok_or_else(|| missing("arrays"))?,
                bytes: self.members.get("array_bytes").ok_or_else(|| missing("array_bytes"))?.inner.size,
                items: self.offsets("items")?[0],
                count: self.offsets("count")?[0],
                inline: self.members.contains_key("inline").then(|| self.field("inline")).transpose()?,
                table: self.root("table")?,
            }),
            other => return Err(PyValueError::new_err(format!("unknown walk {other:?}"))),
        })
    }
}

fn missing(name: &str) -> PyErr {
    PyValueError::new_err(format!("the layout has no {name}"))
}

#[pyfunction]
#[pyo3(signature = (statement, *, max_chars, version, mysql_9, certain))]
fn normalize(
    py: Python<'_>,
    statement: &[u8],
    max_chars: usize,
    version: u32,
    mysql_9: bool,
    certain: bool,
) -> (String, String) {
    let words = if mysql_9 { Words::Mysql9 } else { Words::Mysql8 };
    let context = Context { version, words, certain };
    let digest::Normalized { text, newest } =
        py.detach(|| digest::normalize_both(statement, context, max_chars));
    (text, newest)
}

#[pyfunction]
fn is_unfinished(py: Python<'_>, statement: &[u8]) -> bool {
    py.detach(|| digest::is_unfinished(statement))
}

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(normalize, module)?)?;
    module.add_function(wrap_pyfunction!(is_unfinished, module)?)?;
    module.add_class::<Command>()?;
    module.add_class::<StatementDetails>()?;
    module.add_class::<StatementReader>()
}
