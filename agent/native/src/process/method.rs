//! Chooses and opens the method of copying the threads.

use crate::error::{Error, Kind, Result};
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::loader::Variant;
use crate::snapshot::namespaces::in_container;
use crate::snapshot::procfs::ProcfsSource;
use crate::snapshot::ptrace::PtraceSource;
use crate::snapshot::{Source, plausible};

/// The method of copying the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// The first of the following methods that works on this host, except ptrace. `Bpf` is not used for a
    /// process in a container.
    Auto,
    /// A sleepable BPF task iterator, which stops no threads.
    Bpf,
    /// A non-sleepable BPF task iterator, which stops no threads.
    BpfNosleep,
    /// The files in /proc. Reading them stops no threads.
    Procfs,
    /// ptrace, which stops each thread for tens of microseconds.
    Ptrace,
}

/// The methods that stop no threads, with their names, best first.
const STOPPING_NOTHING: [(&str, Method); 3] =
    [("bpf", Method::Bpf), ("bpf-nosleep", Method::BpfNosleep), ("procfs", Method::Procfs)];

/// Create the source for a method.
pub fn open_source(
    pid: u32,
    method: Method,
    kernel_stacks: bool,
    cached_program: Option<&[u8]>,
) -> Result<Box<dyn Source>> {
    let bpf = |sleepable| {
        BpfSource::new(pid, Variant { sleepable, kernel_stacks }, cached_program).and_then(plausible::checked)
    };
    Ok(match method {
        Method::Auto => {
            return open_first(pid, |method| open_source(pid, method, kernel_stacks, cached_program));
        }
        Method::Bpf => Box::new(bpf(true)?),
        Method::BpfNosleep => Box::new(bpf(false)?),
        Method::Procfs => Box::new(ProcfsSource::new(pid)?),
        Method::Ptrace => Box::new(PtraceSource::new(pid)),
    })
}

/// Create the first source that works, among those that stop no threads. If none works, the error contains
/// all reasons. The error has the kind of the last source's error, because that source has the lowest
/// requirements.
///
/// While a sleepable iterator waits for memory, the kernel cannot detach uprobes from any process:
/// bpf_iter_run_prog (kernel/bpf/bpf_iter.c, Linux 6.18) holds rcu_read_lock_trace, for which
/// uprobe_unregister_sync (kernel/events/uprobes.c) waits. `Bpf` is therefore skipped for a process in a
/// container.
fn open_first(pid: u32, open: impl Fn(Method) -> Result<Box<dyn Source>>) -> Result<Box<dyn Source>> {
    let mut reasons = Vec::new();
    let mut kind = Kind::Internal;
    let first = usize::from(in_container(pid));
    for (name, method) in &STOPPING_NOTHING[first..] {
        match open(*method) {
            Err(error) if error.kind != Kind::Gone => {
                kind = error.kind;
                reasons.push(format!("{name}: {}", error.detail));
            }
            opened => return opened,
        }
    }
    Err(Error::new(kind, reasons.join("; ")))
}
