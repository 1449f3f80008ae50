//! What can go wrong in the core, by the kinds that the command line tells apart.

use std::fmt;
use std::io;

/// Kind of a failure; `as_str` is what Python sees in `NativeError.args[0]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The process ended, or never was.
    Gone,
    /// The kernel answered EPERM or EACCES.
    Rights,
    /// Another debugger has the process.
    Traced,
    /// This kernel cannot load or run the snapshot program.
    Bpf,
    /// A file is not a usable ELF object.
    Elf,
    /// The process is of another CPU architecture than this build.
    Arch,
    /// Anything else: a defect of ours.
    Internal,
}

impl Kind {
    /// The kind's name in Python.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Rights => "rights",
            Self::Traced => "traced",
            Self::Bpf => "bpf",
            Self::Elf => "elf",
            Self::Arch => "arch",
            Self::Internal => "internal",
        }
    }
}

/// A failure with its kind and what was being done.
#[derive(Debug, Clone)]
pub struct Error {
    /// What sort of failure.
    pub kind: Kind,
    /// What failed, on what, why.
    pub detail: String,
}

/// Result of everything in the core.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure of the given kind.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// Sorts an operating system error: ESRCH and ENOENT mean the process is gone, EPERM and EACCES rights,
    /// the rest takes `otherwise`.
    pub fn from_os(error: &io::Error, doing: &str, otherwise: Kind) -> Self {
        let kind = match error.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => Kind::Gone,
            Some(libc::EPERM | libc::EACCES) => Kind::Rights,
            _ => otherwise,
        };
        Self::new(kind, format!("{doing}: {error}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.detail)
    }
}

impl std::error::Error for Error {}
