//! Errors of the Rust core, classified by the kinds that the command line distinguishes.

use std::fmt;
use std::io;

/// The kind of a failure. In Python, `NativeError.args[0]` is the result of `as_str`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The process has exited or never existed.
    Gone,
    /// The kernel refused the operation with EPERM or EACCES.
    Rights,
    /// Another debugger is attached to the process.
    Traced,
    /// This kernel cannot load, attach or run a BPF program, or has no uprobes.
    Bpf,
    /// This kernel cannot open the perf events that are needed.
    Perf,
    /// This kernel lacks a file in /proc that is needed to copy stacks.
    Procfs,
    /// A file is not a usable ELF object.
    Elf,
    /// The process has a different CPU architecture from this build.
    Arch,
    /// Any other failure, which indicates a bug in this program.
    Internal,
}

impl Kind {
    /// Return the kind's name in Python.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::Rights => "rights",
            Self::Traced => "traced",
            Self::Bpf => "bpf",
            Self::Perf => "perf",
            Self::Procfs => "procfs",
            Self::Elf => "elf",
            Self::Arch => "arch",
            Self::Internal => "internal",
        }
    }
}

/// An error: its kind and a description.
#[derive(Debug, Clone)]
pub struct Error {
    /// The kind of failure.
    pub kind: Kind,
    /// The operation that failed, its object, and the reason.
    pub detail: String,
}

/// The result type used throughout the Rust core.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Create an error of the given kind.
    pub fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self { kind, detail: detail.into() }
    }

    /// Convert an operating system error: ESRCH and ENOENT become `Gone`, EPERM and EACCES become `Rights`, and
    /// everything else becomes `otherwise`.
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
