//! A uprobe by BPF link or, where the kernel has no such links, by perf event: gone with its descriptor, also when we
//! are killed. Never by the tracefs file uprobe_events, where a killed owner leaves its probes behind.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
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

/// Closes all of them, at the same time: each waits for the kernel to be done with its program, some 100 ms.
///
/// Not in threads: one that gets a SIGKILL while it takes a breakpoint off leaves it behind for good (the kernel
/// says "leaking uprobe"). So each is closed in a process that shares our descriptors and nobody's signals.
pub fn detach_all(events: Vec<OwnedFd>) {
    let closers: Vec<Closer> = events.into_iter().map(Closer::start).collect();
    for closer in closers {
        closer.wait();
    }
}

/// Enough for one system call.
const STACK_BYTES: usize = 16 << 10;

/// A process that closes one descriptor. It has our memory and our descriptors, so it costs no copy of them.
struct Closer {
    pid: libc::pid_t,
    /// In use until it has ended; 16-byte aligned as the ABI wants it.
    _stack: Vec<u128>,
}

impl Closer {
    fn start(event: OwnedFd) -> Self {
        let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        let fd = event.into_raw_fd();
        let flags = libc::CLONE_VM | libc::CLONE_FILES; // no signal at its end: Python knows nothing of it
        let pid = without_signals(|| {
            let top = stack.as_mut_ptr_range().end;
            // SAFETY: the stack lives until wait() has seen its end; it runs only what close_it does.
            unsafe { libc::clone(close_it, top.cast(), flags, fd as usize as *mut libc::c_void) }
        });
        if pid < 0 {
            // SAFETY: the descriptor is ours, and nobody else closes it.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Self { pid, _stack: stack }
    }

    fn wait(self) {
        // SAFETY: a child of ours; no status is asked for.
        while self.pid > 0
            && unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL) } < 0
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}

extern "C" fn close_it(fd: *mut libc::c_void) -> libc::c_int {
    // SAFETY: raw system calls only: memory and thread-local storage are those of somebody else.
    unsafe {
        libc::syscall(libc::SYS_close, fd as usize as libc::c_long);
        libc::syscall(libc::SYS_exit, 0);
    }
    0
}

/// Runs it with all signals blocked, as a child then is born with.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are ours; the calls cannot fail with these arguments.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let result = run();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        result
    }
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
