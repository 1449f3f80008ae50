//! The part of the Python interface for frames and their classification: wait classes and kinds of threads.
//! _native.pyi documents it.

// PyO3 passes converted arguments by value.
#![allow(clippy::needless_pass_by_value)]

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use rustc_hash::FxHashMap;

use crate::classify::{self, Function, KindRule, Situation, ThreadKind};
use crate::error::Error;
use crate::names;

/// A frame with Python strings, which all frames of the same function share.
#[pyclass(frozen, get_all)]
pub(crate) struct Frame {
    function: Option<Py<PyString>>,
    module: Py<PyString>,
    offset: u64,
    inlined: bool,
    kernel: bool,
    label: Py<PyString>,
}

#[pymethods]
impl Frame {
    #[new]
    #[pyo3(signature = (function, module, offset, inlined = false, kernel = false))]
    fn new(
        function: Option<Bound<'_, PyString>>,
        module: Bound<'_, PyString>,
        offset: u64,
        inlined: bool,
        kernel: bool,
    ) -> PyResult<Self> {
        // These two lines ensure that both strings are valid UTF-8.
        let file = module.to_str()?;
        let name = function.as_ref().map(|function| function.to_str()).transpose()?.unwrap_or_default();
        let label = match &function {
            Some(function) if !name.is_empty() => function.clone(),
            _ => PyString::new(module.py(), &format!("{file}+0x{offset:x}")),
        };
        let function = function.map(Bound::unbind);
        Ok(Self { function, module: module.unbind(), offset, inlined, kernel, label: label.unbind() })
    }

    fn __eq__(&self, py: Python<'_>, other: &Self) -> PyResult<bool> {
        Ok(self.offset == other.offset
            && (self.inlined, self.kernel) == (other.inlined, other.kernel)
            && self.fields(py)? == other.fields(py)?)
    }

    fn __hash__(&self, py: Python<'_>) -> PyResult<isize> {
        Ok(self.label.bind(py).hash()? ^ self.offset as isize)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let (function, module) = self.fields(py)?;
        let (offset, inlined, kernel) = (self.offset, self.inlined, self.kernel);
        Ok(format!("Frame({function:?}, {module:?}, {offset:#x}, inlined={inlined}, kernel={kernel})"))
    }
}

impl Frame {
    fn fields<'a>(&'a self, py: Python<'a>) -> PyResult<(Option<&'a str>, &'a str)> {
        let function = self.function.as_ref().map(|function| function.to_str(py)).transpose()?;
        Ok((function, self.module.to_str(py)?))
    }

    fn function<'a>(&'a self, py: Python<'a>) -> PyResult<Function<'a>> {
        let (name, module) = self.fields(py)?;
        Ok(Function { name: name.unwrap_or_default(), module, kernel: self.kernel })
    }

    /// Convert the frame to the type that the Rust core uses.
    pub fn to_core(&self, py: Python<'_>) -> PyResult<names::Frame> {
        let (function, module) = self.fields(py)?;
        Ok(names::Frame {
            function: function.map(Into::into),
            module: module.into(),
            offset: self.offset,
            inlined: self.inlined,
            kernel: self.kernel,
        })
    }
}

/// A cache of Python frames and strings, so that each is created only once.
#[derive(Default)]
pub(crate) struct Frames {
    objects: FxHashMap<names::Frame, Py<Frame>>,
    strings: FxHashMap<Arc<str>, Py<PyString>>,
    /// Number of frames that stayed when the unused ones were last removed.
    in_use: usize,
}

/// Number of unused frames that may be cached.
const SPARE_FRAMES: usize = 1_000;

impl Frames {
    /// Return a stack as a tuple of frames.
    pub fn stack<'py>(&mut self, py: Python<'py>, frames: &[names::Frame]) -> PyResult<Bound<'py, PyTuple>> {
        let frames: Vec<Py<Frame>> =
            frames.iter().map(|frame| self.frame(py, frame)).collect::<PyResult<_>>()?;
        PyTuple::new(py, frames)
    }

    /// Return true if many cached frames are probably unused. `needed` is the number of frames that are not.
    pub fn exceed(&self, needed: usize) -> bool {
        self.objects.len() > needed.max(2 * self.in_use) + SPARE_FRAMES
    }

    /// Remove the frames and strings that only this cache references, to limit memory. The others stay, so that
    /// the stored stacks share them with later stacks.
    pub fn remove_unused(&mut self, _attached: Python<'_>) {
        // SAFETY: each cache owns a reference to every object in it, so the objects are alive. No other thread
        // changes the counts, because this one is attached to the interpreter.
        self.objects.retain(|_, frame| unsafe { ffi::Py_REFCNT(frame.as_ptr()) } > 1);
        self.strings.retain(|_, string| unsafe { ffi::Py_REFCNT(string.as_ptr()) } > 1);
        self.in_use = self.objects.len();
    }

    fn frame(&mut self, py: Python<'_>, frame: &names::Frame) -> PyResult<Py<Frame>> {
        if let Some(known) = self.objects.get(frame) {
            return Ok(known.clone_ref(py));
        }
        let function = frame.function.as_ref().map(|function| self.string(py, function));
        let module = self.string(py, &frame.module);
        let new = Py::new(py, Frame::new(function, module, frame.offset, frame.inlined, frame.kernel)?)?;
        self.objects.insert(frame.clone(), new.clone_ref(py));
        Ok(new)
    }

    fn string<'py>(&mut self, py: Python<'py>, text: &Arc<str>) -> Bound<'py, PyString> {
        if let Some(known) = self.strings.get(text) {
            return known.bind(py).clone();
        }
        let new = PyString::new(py, text);
        self.strings.insert(Arc::clone(text), new.clone().unbind());
        new
    }
}

/// A rule of waits.yaml: any Python object with these attributes. An empty list means no condition.
#[derive(FromPyObject)]
struct WaitRule {
    wait: String,
    state: Option<String>,
    frames: Vec<String>,
    also: Vec<String>,
    leaf: Vec<String>,
    never: Vec<String>,
    comm: Vec<String>,
    syscalls: HashSet<String>,
    files: HashSet<String>,
}

impl From<WaitRule> for classify::Rule {
    fn from(rule: WaitRule) -> Self {
        let condition = |list: Vec<String>| (!list.is_empty()).then_some(list);
        Self {
            wait: rule.wait,
            running: rule.state.map(|state| state == "running"),
            frames: condition(rule.frames),
            also: condition(rule.also),
            leaf: condition(rule.leaf),
            never: condition(rule.never),
            comm: condition(rule.comm),
            syscalls: rule.syscalls.into_iter().collect(),
            files: rule.files.into_iter().collect(),
        }
    }
}

fn malformed(error: Error) -> PyErr {
    PyValueError::new_err(error.detail)
}

#[pyclass(frozen)]
struct Classifier {
    inner: Mutex<classify::Classifier>,
}

#[pymethods]
impl Classifier {
    #[new]
    fn new(
        rules: Vec<WaitRule>,
        class_states: HashMap<String, String>,
        libraries: Vec<String>,
    ) -> PyResult<Self> {
        let rules = rules
            .into_iter()
            .map(|mut rule| {
                rule.state = rule.state.or_else(|| class_states.get(&rule.wait).cloned());
                rule.into()
            })
            .collect();
        Ok(Self { inner: Mutex::new(classify::Classifier::new(rules, &libraries).map_err(malformed)?) })
    }

    #[pyo3(signature = (frames, *, comm = "", syscall = None, file = None, running = false, stale = false))]
    #[allow(clippy::too_many_arguments)] // Python passes them as keywords
    fn classify<'py>(
        &self,
        py: Python<'py>,
        frames: Vec<PyRef<'py, Frame>>,
        comm: &str,
        syscall: Option<&str>,
        file: Option<&str>,
        running: bool,
        stale: bool,
    ) -> PyResult<Bound<'py, PyString>> {
        let stack: Vec<Function<'_>> =
            frames.iter().map(|frame| frame.function(py)).collect::<PyResult<_>>()?;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = inner.classify(stack, Situation { comm, syscall, file, running, stale });
        Ok(PyString::intern(py, wait))
    }

    fn server_frames<'py>(
        &self,
        py: Python<'py>,
        frames: Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, frame) in frames.iter().enumerate() {
            let frame = frame.extract::<PyRef<'_, Frame>>()?;
            if !frame.kernel && !inner.is_library(frame.module.to_str(py)?) {
                return Ok(frames.get_slice(number, frames.len()));
            }
        }
        Ok(frames)
    }
}

#[pyclass(frozen, get_all, eq, hash, name = "ThreadKind")]
#[derive(Clone, PartialEq, Eq, Hash)]
struct PyThreadKind {
    name: String,
    sure: bool,
}

/// A kind in threads.yaml: any Python object with these attributes.
#[derive(FromPyObject)]
struct KindPatterns {
    frames: Vec<String>,
    comm: Vec<String>,
}

#[pyclass(frozen)]
struct ThreadKinds {
    inner: Mutex<classify::ThreadKinds>,
    names: Vec<String>,
}

#[pymethods]
impl ThreadKinds {
    #[new]
    fn new(kinds: Bound<'_, PyDict>, pool: Vec<String>) -> PyResult<Self> {
        let (mut names, mut rules) = (Vec::new(), Vec::new());
        for (name, patterns) in kinds {
            let KindPatterns { frames, comm } = patterns.extract()?;
            names.push(name.extract()?);
            rules.push(KindRule { frames, comm });
        }
        Ok(Self { inner: Mutex::new(classify::ThreadKinds::new(rules, pool).map_err(malformed)?), names })
    }

    fn of(&self, py: Python<'_>, frames: Vec<PyRef<'_, Frame>>, comm: &str) -> PyResult<PyThreadKind> {
        let functions: Vec<Function<'_>> =
            frames.iter().map(|frame| frame.function(py)).collect::<PyResult<_>>()?;
        let from_root = functions.iter().rev().map(|function| function.name).filter(|name| !name.is_empty());
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (name, sure) = match inner.of(from_root, comm) {
            ThreadKind::Known(number) => (self.names[number].as_str(), true),
            ThreadKind::Pool => ("background", false),
            ThreadKind::Other => ("other", false),
        };
        Ok(PyThreadKind { name: name.to_owned(), sure })
    }
}

#[pyclass(frozen)]
struct Patterns {
    inner: classify::Patterns,
}

#[pymethods]
impl Patterns {
    #[new]
    fn new(patterns: Vec<String>) -> PyResult<Self> {
        Ok(Self { inner: classify::Patterns::new(&patterns).map_err(malformed)? })
    }

    fn matches(&self, name: &str) -> bool {
        self.inner.matches(name)
    }
}

#[pyfunction]
fn plain_name(function: &str) -> &str {
    classify::plain_name(function)
}

#[pyfunction]
fn pattern_problem(patterns: Vec<String>) -> Option<String> {
    classify::pattern_problem(&patterns)
}

/// Add these classes and functions to `innoscope._native`.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Frame>()?;
    module.add_class::<Classifier>()?;
    module.add_class::<PyThreadKind>()?;
    module.add_class::<ThreadKinds>()?;
    module.add_class::<Patterns>()?;
    module.add_function(wrap_pyfunction!(plain_name, module)?)?;
    module.add_function(wrap_pyfunction!(pattern_problem, module)?)
}
