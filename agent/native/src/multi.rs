//! Attaches uprobes with BPF links (uprobe_multi, Linux 6.6). A hit costs less than with a perf event, and
//! many probes can be detached without waiting for the kernel for each of them. Like a perf event, a link is
//! detached when its descriptor is closed.

use std::env;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process;
use std::sync::OnceLock;
use std::thread;

use crate::arch::host::innoscope_calibration;
use crate::bpfmap::Map;
use crate::closers;
use crate::maps;
use crate::openers;
use crate::programs::{self, Shape};
use crate::uprobe::Place;

/// Environment variable: if set to "events", uprobes use perf events even if the kernel supports links.
const ENVIRONMENT_VARIABLE: &str = "INNOSCOPE_UPROBES";
const BPF_MAP_TYPE_ARRAY: u32 = libbpf_sys::BPF_MAP_TYPE_ARRAY;
const COUNTER: Shape = Shape {
    name: String::new(),
    kind: BPF_MAP_TYPE_ARRAY,
    key_bytes: 4,
    value_bytes: 8,
    entries: 1,
    flags: 0,
};
/// A program, as an array of struct bpf_insn, that adds one to the only value of map 0.
const COUNT: [[u8; 8]; 11] = [
    [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0], // *(u32 *)(r10 - 4) = 0
    [0x18, 0x11, 0, 0, 0, 0, 0, 0],       // r1 = map 0
    [0, 0, 0, 0, 0, 0, 0, 0],
    [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],             // r2 = r10
    [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff], // r2 -= 4
    [0x85, 0, 0, 0, 1, 0, 0, 0],                // r0 = bpf_map_lookup_elem(r1, r2)
    [0x15, 0, 2, 0, 0, 0, 0, 0],                // if r0 == 0 goto +2
    [0xb7, 0x01, 0, 0, 1, 0, 0, 0],             // r1 = 1
    [0xdb, 0x10, 0, 0, 0, 0, 0, 0],             // lock *(u64 *)(r0 + 0) += r1
    [0xb7, 0, 0, 0, 0, 0, 0, 0],                // r0 = 0
    [0x95, 0, 0, 0, 0, 0, 0, 0],                // exit
];

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
        _ => count_one_call(),
    })
}

/// Attach a program, loaded by [`programs::load_for_links`], and return the descriptor of the link.
/// Closing it detaches the program.
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

/// Check that a link counts a call made by a thread other than the process's first one.
fn count_one_call() -> Result<(), String> {
    let counter = programs::create_map(&COUNTER).map_err(|error| error.to_string())?;
    let program = programs::load_for_links("try_out", COUNT.as_flattened(), &[counter.as_raw_fd()])
        .map_err(|error| error.to_string())?;
    let address = innoscope_calibration as *const () as u64;
    let pid = process::id();
    let own = maps::executable(pid)
        .map_err(|error| error.to_string())?
        .into_iter()
        .find(|one| (one.start..one.end).contains(&address))
        .ok_or("our own code is not mapped")?;
    let file = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", own.start, own.end));
    let place = Place { file: &file, offset: address - own.start + own.offset, pid, on_return: false };
    let link = attach(program.as_raw_fd(), place).map_err(|error| error.to_string())?;
    let called = thread::spawn(|| innoscope_calibration(1)).join();
    closers::close_all(vec![link]);
    let map = Map { descriptor: counter.as_raw_fd(), key_bytes: 4, words: 1, per_cpu: false };
    let calls = map.array(1).map_err(|error| error.to_string())?;
    if called.is_ok() && calls == [[1]] {
        Ok(())
    } else {
        Err("links do not count the calls of all threads".to_owned())
    }
}
