//! Attaches uprobes with BPF links (uprobe_multi, Linux 6.6). A hit costs less than with a perf event, and
//! many probes can be detached without waiting for the kernel for each of them. Like a perf event, a link is
//! detached when its descriptor is closed.

use std::env;
use std::ffi::CString;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use crate::uprobe::{self, Place};
use crate::{openers, programs, uprobe_check};

/// Environment variable: if set to "events", uprobes use perf events even if the kernel supports links.
const ENVIRONMENT_VARIABLE: &str = "INNOSCOPE_UPROBES";

/// Return true if this kernel supports uprobe links that count the calls made by all threads. In some kernels
/// before 6.10, links count only the calls made by a process's first thread. Support is detected once, by
/// probing one of our own functions.
pub fn is_supported() -> bool {
    detect().is_ok()
}

/// Detect support in the same way as [`is_supported`], and return the reason if links are not supported.
pub fn detect() -> &'static Result<(), String> {
    static DETECTED: OnceLock<Result<(), String>> = OnceLock::new();
    DETECTED.get_or_init(|| match env::var_os(ENVIRONMENT_VARIABLE) {
        Some(choice) if choice == "events" => Err(format!("{ENVIRONMENT_VARIABLE} is events")),
        _ => uprobe_check::count_one_call(programs::load_for_links, |program, place| {
            attach(program, place).map_err(|error| uprobe::failed(&error, place))
        }),
    })
}

/// Attach a program, loaded by [`programs::load_for_links`], and return the descriptor of the link. Closing the
/// descriptor detaches the program.
pub fn attach(program: RawFd, place: Place<'_>) -> io::Result<OwnedFd> {
    let path = CString::new(place.file.as_os_str().as_bytes())?;
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    let offset: libc::c_ulong = place.offset;
    options.__bindgen_anon_1.uprobe_multi = libbpf_sys::bpf_link_create_opts__bindgen_ty_1__bindgen_ty_3 {
        path: path.as_ptr(),
        offsets: &raw const offset,
        cnt: 1,
        flags: if place.on_return { libbpf_sys::BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        pid: place.pid,
        ..Default::default()
    };
    // SAFETY: the options and the path and offset that they point to outlive the call. bpf_link_create fills in a
    // local variable and makes the system call.
    unsafe {
        openers::open(|| {
            let kind = libbpf_sys::BPF_TRACE_UPROBE_MULTI;
            programs::owned(libbpf_sys::bpf_link_create(program, 0, kind, &raw const options))
        })
    }
}
