//! The source that stops nothing: a sleepable BPF task iterator (kernel >= 5.18).

use std::fs::File;
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::fitted::{self, Loaded};
use super::record::parse_all;
use super::{RawThread, Source};
use crate::bpfmap::Map;
use crate::error::{Error, Kind, Result};
use crate::programs::owned;
use crate::turn::Turn;

/// One read() returns at most the seq_file's buffer, 8 pages.
const READ_BYTES: usize = 64 * 1024;

/// `struct config` of the program.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Config {
    tgid: u32,
    tid: u32,
    stacks: u32,
    changed_only: u32,
}

/// Copies the threads of one process with the task iterator.
pub struct BpfSource {
    loaded: Loaded,
    pid: u32,
    link: OwnedFd,
    /// Whether the kernel lets a link visit one process only (>= 6.1); else the program filters.
    narrow: bool,
    /// Kept between looks: 14 MB fresh from the kernel cost more than the copy itself.
    buffer: Arc<Vec<u8>>,
}

impl BpfSource {
    /// Loads the program for process `pid`, as [`fitted::load`] does.
    pub fn new(pid: u32, kernel_stacks: bool, kept: Option<&[u8]>) -> Result<Self> {
        let loaded = fitted::load(kernel_stacks, kept)?;
        let program = loaded.program.as_raw_fd();
        let (link, narrow) = match attach(program, Some(LinkTask { tid: 0, pid })) {
            Ok(link) => (link, true),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                return Err(Error::new(Kind::Gone, format!("process {pid} does not exist")));
            }
            Err(_) => {
                let link = attach(program, None)
                    .map_err(|error| Error::from_os(&error, "attaching the task iterator", Kind::Bpf))?;
                (link, false)
            }
        };
        Ok(Self { loaded, pid, link, narrow, buffer: Arc::default() })
    }

    fn configure(&self, tid: u32, stacks: bool, changed_only: bool) -> Result<()> {
        let config = Config {
            tgid: if self.narrow { 0 } else { self.pid },
            tid,
            stacks: stacks.into(),
            changed_only: changed_only.into(),
        };
        let mut value = Vec::with_capacity(size_of::<Config>());
        for word in [config.tgid, config.tid, config.stacks, config.changed_only] {
            value.extend_from_slice(&word.to_ne_bytes());
        }
        let map = Map { descriptor: self.loaded.config.as_raw_fd(), key_bytes: 4, words: 2, per_cpu: false };
        map.update(&0u32.to_ne_bytes(), &value)
            .map_err(|error| Error::new(Kind::Internal, format!("configuring the snapshot program: {error}")))
    }

    /// Runs the iterator behind `link` to its end, into `buffer` where nobody else holds it any more.
    fn run(link: RawFd, mut buffer: Arc<Vec<u8>>) -> Result<(Vec<RawThread>, Arc<Vec<u8>>)> {
        let failed = |error: io::Error| Error::from_os(&error, "running the task iterator", Kind::Bpf);
        if Arc::get_mut(&mut buffer).is_none() {
            buffer = Arc::default();
        }
        let bytes = Arc::get_mut(&mut buffer).expect("just made or shown to be ours");
        // SAFETY: link is an open descriptor; the call returns a new one or an error.
        let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link) }).map_err(failed)?;
        let mut iterator = File::from(iterator);
        let mut filled = 0;
        let mut turn = Turn::begin();
        loop {
            if bytes.len() < filled + READ_BYTES {
                bytes.resize(filled + READ_BYTES, 0);
            }
            match iterator.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
            turn.give_way();
        }
        if bytes.len() > 4 * (filled + READ_BYTES) {
            bytes.truncate(filled + READ_BYTES); // the first look copies all threads, later ones those that ran
            bytes.shrink_to_fit();
        }
        Ok((parse_all(&buffer, filled), buffer))
    }

    fn visit_one(&mut self, tid: u32, stacks: bool) -> Result<Option<RawThread>> {
        self.configure(tid, stacks, false)?;
        let threads = if self.narrow {
            match attach(self.loaded.program.as_raw_fd(), Some(LinkTask { tid, pid: 0 })) {
                Ok(link) => Self::run(link.as_raw_fd(), Arc::default())?.0,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Vec::new(),
                Err(error) => return Err(Error::from_os(&error, "attaching to one thread", Kind::Bpf)),
            }
        } else {
            Self::run(self.link.as_raw_fd(), Arc::default())?.0
        };
        Ok(threads.into_iter().find(|thread| thread.tid == tid))
    }
}

impl Source for BpfSource {
    fn copy_all(&mut self) -> Result<Vec<RawThread>> {
        self.configure(0, true, true)?;
        let (threads, buffer) = Self::run(self.link.as_raw_fd(), std::mem::take(&mut self.buffer))?;
        self.buffer = buffer;
        Ok(threads)
    }

    fn copy_one(&mut self, tid: u32) -> Result<Option<RawThread>> {
        self.visit_one(tid, true)
    }

    fn glance(&mut self, tid: u32) -> Result<Option<RawThread>> {
        self.visit_one(tid, false)
    }

    fn name(&self) -> &'static str {
        "bpf"
    }

    fn fitted(&self) -> Option<&[u8]> {
        self.loaded.fitted.as_deref()
    }
}

#[derive(Clone, Copy)]
struct LinkTask {
    tid: u32,
    pid: u32,
}

/// Run an iterator program that returns no records, for each thread of process `pid`, or of all processes where the
/// kernel cannot limit it to one. A process that has ended has no threads.
pub fn visit(program: RawFd, pid: u32) -> io::Result<()> {
    let link = match attach(program, Some(LinkTask { tid: 0, pid })) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        Err(_) => attach(program, None)?,
        Ok(link) => link,
    };
    // SAFETY: link is an open descriptor; the call returns a new one or an error.
    let mut iterator = File::from(owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?);
    io::copy(&mut iterator, &mut io::sink()).map(drop)
}

/// libbpf-rs has no options for task iterators, so the link is made with the call below it.
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
    // SAFETY: options and what it points to outlive the call.
    owned(unsafe { libbpf_sys::bpf_link_create(program, 0, libbpf_sys::BPF_TRACE_ITER, &raw const options) })
}
