//! A uprobe by BPF link or, where the kernel has no such links, by perf event: gone with its descriptor, also when we
//! are killed. Never by the tracefs file uprobe_events, where a killed owner leaves its probes behind.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use perf_event_open_sys as sys;
use sys::bindings::perf_event_attr;

use crate::error::{Error, Kind, Result};
use crate::multi;

const PMU: &str = "/sys/bus/event_source/devices/uprobe";

/// Where to probe.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The file; through /proc/PID/map_files it is the very one that is mapped.
    pub file: &'a Path,
    /// Offset in the file, in bytes, of a function's first instruction.
    pub offset: u64,
    /// The only process whose copy gets the breakpoint (all of its threads).
    pub pid: u32,
    /// At the return of the function. A C++ exception that crosses such a call ends the process: only the
    /// catalog may say that none does.
    pub on_return: bool,
}

/// Puts the BPF program (of [`crate::programs::load_uprobe`]) at that place until the descriptor is closed.
///
/// Errors: `Rights` (CAP_SYS_ADMIN for perf events, since CVE-2025-38466), `Gone`, `Bpf` where the kernel has no uprobes or
/// refuses the instruction.
pub fn attach(program: RawFd, place: Place<'_>) -> Result<OwnedFd> {
    if multi::works() {
        return multi::attach(program, place).map_err(|error| failed(&error, place));
    }
    by_event(program, place)
}

fn what(place: Place<'_>) -> String {
    format!("probing {} at offset {:#x} of process {}", place.file.display(), place.offset, place.pid)
}

fn failed(error: &io::Error, place: Place<'_>) -> Error {
    Error::from_os(error, &what(place), Kind::Bpf)
}

fn by_event(program: RawFd, place: Place<'_>) -> Result<OwnedFd> {
    let path = CString::new(place.file.as_os_str().as_bytes())
        .map_err(|_| Error::new(Kind::Internal, format!("{}: a NUL in the path", what(place))))?;
    let mut attributes = attributes(&path, place)?;
    // SAFETY: attributes and the path it points to outlive the call; the result is a new descriptor or -1.
    let event: RawFd = unsafe {
        sys::perf_event_open(
            &raw mut attributes,
            place.pid as libc::pid_t,
            -1,
            -1,
            sys::bindings::PERF_FLAG_FD_CLOEXEC.into(),
        )
    };
    if event < 0 {
        return Err(failed(&io::Error::last_os_error(), place));
    }
    // SAFETY: fresh and ours.
    let event = unsafe { OwnedFd::from_raw_fd(event) };
    // SAFETY: both descriptors are open.
    let set = unsafe { sys::ioctls::SET_BPF(event.as_raw_fd(), program.cast_unsigned()) };
    // SAFETY: as above.
    if set < 0 || unsafe { sys::ioctls::ENABLE(event.as_raw_fd(), 0) } < 0 {
        return Err(failed(&io::Error::last_os_error(), place));
    }
    Ok(event)
}

/// Whether the kernel executes the first instruction of this x86 code out of line at a hit, because it cannot
/// emulate it: anything but a push, a nop, a call or a jump (arch/x86/kernel/uprobes.c).
pub fn is_stepped(code: &[u8]) -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        return false;
    }
    let opcode = match code {
        [0x40..=0x4f, rest @ ..] => rest.first(),
        _ => code.first(),
    };
    !matches!(opcode, Some(0x50..=0x57 | 0x90 | 0xe8 | 0xe9 | 0xeb | 0x70..=0x7f))
}

fn attributes(path: &CString, place: Place<'_>) -> Result<perf_event_attr> {
    let mut attributes = perf_event_attr {
        size: size_of::<perf_event_attr>() as u32,
        type_: pmu_type()?,
        ..Default::default()
    };
    if place.on_return {
        attributes.config = 1 << retprobe_bit()?;
    }
    attributes.__bindgen_anon_3.config1 = path.as_ptr() as u64; // uprobe_path
    attributes.__bindgen_anon_4.config2 = place.offset; // probe_offset
    Ok(attributes)
}

fn pmu_type() -> Result<u32> {
    let text = pmu_file("type")?;
    text.trim().parse().map_err(|_| odd("type", &text))
}

/// "config:0" says which bit of `config` asks for a return probe.
fn retprobe_bit() -> Result<u32> {
    let text = pmu_file("format/retprobe")?;
    text.trim()
        .strip_prefix("config:")
        .and_then(|bit| bit.parse().ok())
        .ok_or_else(|| odd("format/retprobe", &text))
}

fn pmu_file(name: &str) -> Result<String> {
    let path = format!("{PMU}/{name}");
    fs::read_to_string(&path).map_err(|error| {
        Error::new(Kind::Bpf, format!("this kernel has no uprobes for perf events: {path}: {error}"))
    })
}

fn odd(name: &str, text: &str) -> Error {
    Error::new(Kind::Bpf, format!("{PMU}/{name} reads {text:?}"))
}
