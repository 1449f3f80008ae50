//! Attaches uprobes with BPF links or, if links are not supported, with perf events. A link or event is detached
//! when its descriptor is closed, even if this process is killed. The tracefs file uprobe_events is
//! never used, because its probes outlive a killed owner.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use perf_event_open_sys as sys;
use sys::bindings::perf_event_attr;

use crate::error::{Error, Kind, Result};
use crate::{descriptors, multi, openers, programs, return_probes, uprobe_check};

const PMU: &str = "/sys/bus/event_source/devices/uprobe";

/// The location of a probe.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The file. A path below /proc/PID/map_files refers to exactly the mapped file.
    pub file: &'a Path,
    /// File offset of the function's first instruction, in bytes.
    pub offset: u64,
    /// The process in which the breakpoint is set, for all of its threads.
    pub pid: u32,
    /// Probe the return of the function. A C++ exception that crosses a return probe kills the process, so
    /// this is allowed only if the catalog states that no exception can cross it.
    pub on_return: bool,
}

/// Attach a BPF program, loaded by [`crate::programs::load_uprobe`], and return its descriptor. Closing the
/// descriptor detaches the program.
///
/// Errors: `Rights` (perf events need CAP_SYS_ADMIN since CVE-2025-38466), `Gone`, `Bpf` if the kernel has no
/// uprobes or rejects the instruction, or if a return probe could kill the process.
pub fn attach(program: RawFd, place: Place<'_>) -> Result<OwnedFd> {
    if place.on_return {
        return_probes::check(place.pid)?;
    }
    // In kernels without the fix of CVE-2024-47675, a link that gets no descriptor leaves a freed object in use.
    descriptors::raise_limit(descriptors::MANY);
    if multi::is_supported() {
        return multi::attach(program, place).map_err(|error| failed(&error, place));
    }
    by_event(program, place)
}

/// Check that perf events count the calls of a function. Return the reason if they do not.
pub fn detect_events() -> std::result::Result<(), String> {
    uprobe_check::count_one_call(programs::load_for_events, by_event)
}

fn what(place: Place<'_>) -> String {
    format!("probing {} at offset {:#x} of process {}", place.file.display(), place.offset, place.pid)
}

pub(crate) fn failed(error: &io::Error, place: Place<'_>) -> Error {
    Error::from_os(error, &what(place), Kind::Bpf)
}

fn by_event(program: RawFd, place: Place<'_>) -> Result<OwnedFd> {
    let path = CString::new(place.file.as_os_str().as_bytes())
        .map_err(|_| Error::new(Kind::Internal, format!("{}: the path contains a NUL", what(place))))?;
    let attributes = attributes(&path, place)?;
    // SAFETY: the path to which `attributes` points outlives the call. The closure only makes system calls.
    unsafe { openers::open(|| open_event(attributes, program, place.pid)) }
        .map_err(|error| failed(&error, place))
}

/// Open an event that runs the program at each hit. This only makes system calls.
fn open_event(mut attributes: perf_event_attr, program: RawFd, pid: u32) -> io::Result<OwnedFd> {
    let flags = sys::bindings::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: `attributes` is initialized and outlives the call.
    let event: RawFd =
        unsafe { sys::perf_event_open(&raw mut attributes, pid as libc::pid_t, -1, -1, flags) };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: perf_event_open just returned this descriptor; nothing else owns it.
    let event = unsafe { OwnedFd::from_raw_fd(event) };
    // SAFETY: both descriptors are open, and the ioctl takes no pointers.
    let set = unsafe { sys::ioctls::SET_BPF(event.as_raw_fd(), program.cast_unsigned()) };
    // SAFETY: the descriptor is open, and the ioctl takes a number.
    if set < 0 || unsafe { sys::ioctls::ENABLE(event.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(event)
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
    text.trim().parse().map_err(|_| unexpected("type", &text))
}

/// Return the bit of `config` that requests a return probe; the file has the form "config:0".
fn retprobe_bit() -> Result<u32> {
    let text = pmu_file("format/retprobe")?;
    text.trim()
        .strip_prefix("config:")
        .and_then(|bit| bit.parse().ok())
        .ok_or_else(|| unexpected("format/retprobe", &text))
}

fn pmu_file(name: &str) -> Result<String> {
    let path = format!("{PMU}/{name}");
    fs::read_to_string(&path).map_err(|error| {
        Error::new(Kind::Bpf, format!("this kernel has no uprobes for perf events: {path}: {error}"))
    })
}

fn unexpected(name: &str, text: &str) -> Error {
    Error::new(Kind::Bpf, format!("unexpected content of {PMU}/{name}: {text:?}"))
}
