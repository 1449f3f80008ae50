//! Loads the programs of probes/trace for one function. The caller attaches them with [`crate::uprobe`].

use std::os::fd::{AsFd, AsRawFd, RawFd};

use libbpf_rs::{MapCore, ObjectBuilder, ProgramAttachType};

use crate::error::{Error, Kind, Result};
use crate::multi;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/trace.bpf.o"));

/// `NO_ARGUMENT` of trace.bpf.c.
const NO_ARGUMENT: u32 = u32::MAX;
/// Size of the ring buffer if it is not used. The size must be a multiple of the page size, which is at most
/// 64 KiB.
const MIN_RING: u32 = 64 << 10;

/// The argument to record, and the measurements to make.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The index of the argument whose values are counted, from 0.
    pub argument: Option<u32>,
    /// The argument's width in bits.
    pub bits: u32,
    /// Measure the duration of calls, by probing the function's return as well.
    pub timed: bool,
    /// Size of the ring buffer for stacks, a power-of-two number of pages; None to capture no stacks.
    pub ring_bytes: Option<u32>,
}

/// The loaded programs and maps, which are unloaded on drop.
pub struct Trace {
    object: libbpf_rs::Object,
}

impl Trace {
    /// Load the programs.
    ///
    /// Errors: `Rights` without CAP_BPF and CAP_PERFMON (or root), `Bpf` if the kernel has no BTF or rejects
    /// the programs.
    pub fn new(options: Options) -> Result<Self> {
        // libbpf prints to stderr by default. The returned error contains everything that matters.
        libbpf_rs::set_print(None);
        let mut open = ObjectBuilder::default().open_memory(OBJECT).map_err(|error| failed(&error))?;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            let set = match name.as_str() {
                "samples" => map.set_max_entries(options.ring_bytes.unwrap_or(MIN_RING)),
                "values" if options.argument.is_none() => map.set_max_entries(1),
                name if name.ends_with(".rodata") => map.set_initial_value(&constants(options)),
                _ => Ok(()),
            };
            set.map_err(|error| failed(&error))?;
        }
        if multi::is_supported() {
            for mut program in open.progs_mut() {
                program.set_attach_type(ProgramAttachType::TraceUprobeMulti);
            }
        }
        Ok(Self { object: open.load().map_err(|error| failed(&error))? })
    }

    /// Return the descriptor of a program: `trace_enter` or `trace_leave`.
    pub fn program(&self, name: &str) -> Result<RawFd> {
        let found = self.object.progs_mut().find(|program| program.name() == name);
        let found = found.ok_or_else(|| Error::new(Kind::Internal, format!("no program named {name}")))?;
        Ok(found.as_fd().as_raw_fd())
    }

    /// Return the descriptor of a map.
    pub fn map(&self, name: &str) -> Result<RawFd> {
        let found = self.object.maps().find(|map| map.name() == name);
        let found = found.ok_or_else(|| Error::new(Kind::Internal, format!("no map named {name}")))?;
        Ok(found.as_fd().as_raw_fd())
    }
}

/// Encode the variable `wanted` of trace.bpf.c.
fn constants(options: Options) -> Vec<u8> {
    let Options { argument, bits, timed, ring_bytes } = options;
    [argument.unwrap_or(NO_ARGUMENT), bits, timed.into(), ring_bytes.is_some().into()]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect()
}

fn failed(error: &libbpf_rs::Error) -> Error {
    let kind = match error.kind() {
        libbpf_rs::ErrorKind::PermissionDenied => Kind::Rights,
        _ => Kind::Bpf,
    };
    Error::new(kind, format!("loading the programs of a trace: {error}"))
}
