//! Attaches BPF programs that iterate over threads.

use std::fs::File;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::error::{Error, Kind, Result};
use crate::programs::owned;

/// Attach an iterator program to the threads of a process. Return the link, and whether the kernel limits it to
/// this process; otherwise, the program runs for the threads of all processes.
pub fn attach_to_process(program: RawFd, pid: u32) -> Result<(OwnedFd, bool)> {
    match attach(program, Some(LinkTask { tid: 0, pid })) {
        Ok(link) => Ok((link, true)),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            Err(Error::new(Kind::Gone, format!("process {pid} does not exist")))
        }
        Err(_) => attach(program, None)
            .map(|link| (link, false))
            .map_err(|error| Error::from_os(&error, "attaching the task iterator", Kind::Bpf)),
    }
}

/// Attach an iterator program to one thread.
///
/// Errors: ESRCH if the thread has exited.
pub fn attach_to_thread(program: RawFd, tid: u32) -> io::Result<OwnedFd> {
    attach(program, Some(LinkTask { tid, pid: 0 }))
}

/// Start an iteration. The program runs while the file is read, which returns its records.
pub fn start(link: RawFd) -> io::Result<File> {
    // SAFETY: the descriptor of the link is open, and the call takes no pointers.
    Ok(File::from(owned(unsafe { libbpf_sys::bpf_iter_create(link) })?))
}

#[derive(Clone, Copy)]
struct LinkTask {
    tid: u32,
    pid: u32,
}

/// For each thread of process `pid`, run an iterator program that writes no records. If the kernel cannot
/// limit the link to one process, the program runs for the threads of all processes. A process that has
/// exited counts as one without threads.
pub fn visit(program: RawFd, pid: u32) -> io::Result<()> {
    let link = match attach(program, Some(LinkTask { tid: 0, pid })) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        Err(_) => attach(program, None)?,
        Ok(link) => link,
    };
    io::copy(&mut start(link.as_raw_fd())?, &mut io::sink()).map(drop)
}

/// Attach an iterator program. libbpf-rs has no options for task iterators, so libbpf is called directly.
fn attach(program: RawFd, task: Option<LinkTask>) -> io::Result<OwnedFd> {
    let mut info = libbpf_sys::bpf_iter_link_info::default();
    let mut options = libbpf_sys::bpf_link_create_opts {
        sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    if let Some(LinkTask { tid, pid }) = task {
        info.task = libbpf_sys::bpf_iter_link_info__bindgen_ty_3 { tid, pid, pid_fd: 0 };
        options.iter_info = &raw mut info;
        options.iter_info_len = size_of::<libbpf_sys::bpf_iter_link_info>() as u32;
    }
    // SAFETY: `options` and the link info that it points to outlive the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program, 0, libbpf_sys::BPF_TRACE_ITER, &raw const options) })
}
