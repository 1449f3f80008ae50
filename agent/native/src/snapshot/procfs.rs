//! The snapshot source for hosts without BPF, which reads files in /proc. This stops no threads, and requires
//! Linux >= 3.2 for `process_vm_readv`.
//!
//! `/proc/PID/task/TID/syscall` contains the stack pointer and the instruction pointer of a blocked thread, but
//! not its frame pointer (lib/syscall.c, `task_current_syscall`). `process_vm_readv` copies the stack. The
//! third field of `schedstat` counts how often the thread was scheduled on a CPU (`sched_info.pcount`,
//! kernel/sched/stats.h, `sched_info_arrive`). If it is the same before and after the copy, the thread did not
//! run in between. All of this needs only the permission to ptrace the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::vec;

use rustc_hash::{FxHashMap, FxHashSet};

use super::rotation::Rotation;
use super::schedstat::Schedstat;
use super::task::{read_thread, thread_ids};
use super::{Consistency, RawThread, Registers, Source};
use crate::descriptors;
use crate::error::{Error, Kind, Result};
use crate::memory;

/// Maximum stack bytes copied per thread. The rest of a larger stack is read when it is unwound.
const STACK_BYTES: usize = 20 << 10;
/// Maximum stack bytes copied for a thread if the snapshot's budget does not suffice for its stack.
const SHALLOW_BYTES: usize = 1024;
/// Number of stack bytes after which a call to `next` returns.
const PART_BYTES: usize = 16 << 20;
/// Maximum length of the file `syscall`.
const FILE_BYTES: usize = 1024;

/// Copies the threads of one process by reading /proc.
pub struct ProcfsSource {
    pid: u32,
    threads: FxHashMap<u32, Watched>,
    /// Maximum number of threads whose files stay open.
    open_limit: usize,
    remaining: vec::IntoIter<u32>,
    rotation: Rotation,
    groups: u32,
    group: u32,
    budget: u64,
}

/// The open files of a thread, and its last copy without the stack.
struct Watched {
    files: ThreadFiles,
    last: Option<RawThread>,
}

/// The files of one thread. After the thread has exited, reading them fails, even if its id is reused.
struct ThreadFiles {
    syscall: File,
    schedstat: File,
}

/// The content of `syscall` for a blocked thread.
struct Blocked {
    syscall: i32,
    arg0: u64,
    sp: u64,
    ip: u64,
}

impl ProcfsSource {
    /// Create a source for process `pid`, and read the state of its first thread.
    ///
    /// Errors: `Gone`; `Rights` without the permission to ptrace the process; `Procfs` if the kernel does not
    /// provide the files.
    pub fn new(pid: u32) -> Result<Self> {
        let files = ThreadFiles::open(pid, pid).map_err(|error| failed(&error, "opening the files", pid))?;
        let blocked =
            files.read_syscall().map_err(|error| failed(&error, "reading the file syscall", pid))?;
        if let Some(Blocked { sp, .. }) = blocked {
            memory::read_some(pid, sp, 8).map_err(|error| failed(&error, "copying a stack", pid))?;
        }
        let ran = Schedstat::read(&files.schedstat)
            .map_err(|error| failed(&error, "reading the file schedstat", pid))?;
        if ran.times_run == 0 {
            let detail = "the kernel does not count how often a thread runs (CONFIG_SCHED_INFO)";
            return Err(Error::new(Kind::Procfs, detail));
        }
        // With the usual limit of 1,024, most files would have to be opened again in each snapshot of 1,000 threads.
        let descriptors = descriptors::raise_limit(descriptors::MANY);
        Ok(Self {
            pid,
            threads: FxHashMap::default(),
            // Each thread takes two descriptors. Half of all descriptors are left for other uses.
            open_limit: usize::try_from(descriptors / 4).unwrap_or(usize::MAX),
            remaining: Vec::new().into_iter(),
            rotation: Rotation::default(),
            groups: 1,
            group: 0,
            budget: u64::MAX,
        })
    }

    /// Remove and return the thread's open files and its last copy. If its files are not open, open them.
    /// [`Self::keep`] puts them back.
    fn take(&mut self, tid: u32) -> io::Result<Watched> {
        match self.threads.remove(&tid) {
            Some(watched) => Ok(watched),
            None => Ok(Watched { files: ThreadFiles::open(self.pid, tid)?, last: None }),
        }
    }

    fn keep(&mut self, tid: u32, watched: Watched) {
        if self.threads.len() < self.open_limit {
            self.threads.insert(tid, watched);
        }
    }

    /// Copy a thread, with at most `limit` bytes of its stack. Return None if the thread has exited.
    ///
    /// With `changed_only`, a thread that has not run since its last copy is not copied again.
    fn copy(&mut self, tid: u32, limit: usize, changed_only: bool) -> Result<Option<RawThread>> {
        match self.try_copy(tid, limit, changed_only) {
            Ok(thread) => Ok(thread),
            Err(error) if has_exited(&error) => Ok(None),
            Err(error) => Err(failed(&error, &format!("copying thread {tid}"), self.pid)),
        }
    }

    fn try_copy(&mut self, tid: u32, limit: usize, changed_only: bool) -> io::Result<Option<RawThread>> {
        let Watched { files, last } = match self.take(tid) {
            Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                self.threads.clear();
                self.open_limit /= 2;
                self.take(tid)?
            }
            taken => taken?,
        };
        let Schedstat { times_run: before, run_count } = Schedstat::read(&files.schedstat)?;
        if changed_only && let Some(thread) = last.as_ref().filter(|last| last.switches == before).cloned() {
            self.keep(tid, Watched { files, last });
            return Ok(Some(RawThread { unchanged: true, ..thread }));
        }
        let Some(mut thread) = read_thread(self.pid, tid) else { return Ok(None) };
        (thread.switches, thread.ran) = (before, run_count);
        if let Some(Blocked { syscall, arg0, sp, ip }) = files.read_syscall()? {
            (thread.syscall, thread.arg0) = (syscall, arg0);
            thread.registers = Registers { ip, sp, bp: None, lr: None };
            if limit > 0 {
                thread.stack = memory::read_some(self.pid, sp, limit).unwrap_or_default().into();
            }
            if Schedstat::read(&files.schedstat)?.times_run != before {
                thread.consistency = Consistency::Torn;
            }
        } else {
            thread.consistency = Consistency::Running;
            thread.state = 'R';
        }
        let is_complete = limit == STACK_BYTES && thread.consistency == Consistency::Consistent;
        let last = if is_complete {
            Some(thread.clone().without_stack())
        } else {
            last.filter(|last| last.switches == before)
        };
        self.keep(tid, Watched { files, last });
        Ok(Some(thread))
    }
}

impl Source for ProcfsSource {
    fn begin(&mut self, stack_bytes: u64) -> Result<()> {
        let ids = thread_ids(self.pid)?;
        let alive: FxHashSet<u32> = ids.iter().copied().collect();
        self.threads.retain(|tid, _| alive.contains(tid));
        self.remaining = ids.into_iter();
        (self.groups, self.group) = self.rotation.begin(stack_bytes);
        self.budget = stack_bytes;
        Ok(())
    }

    fn next(&mut self) -> Result<Vec<RawThread>> {
        let (mut threads, mut bytes) = (Vec::new(), 0);
        while bytes < PART_BYTES
            && let Some(tid) = self.remaining.next()
        {
            let shallow = self.budget < STACK_BYTES as u64 || tid % self.groups != self.group;
            let limit = if shallow { SHALLOW_BYTES } else { STACK_BYTES };
            let Some(mut thread) = self.copy(tid, limit, true)? else { continue };
            thread.shallow = shallow && !thread.unchanged;
            bytes += thread.stack.len();
            self.budget = self.budget.saturating_sub(self.rotation.count(&thread));
            threads.push(thread);
        }
        if threads.is_empty() {
            self.rotation.finish();
        }
        Ok(threads)
    }

    fn copy_one(&mut self, tid: u32) -> Result<Option<RawThread>> {
        self.copy(tid, STACK_BYTES, false)
    }

    fn read_state(&mut self, tid: u32) -> Result<Option<RawThread>> {
        self.copy(tid, 0, false)
    }

    fn read_states(&mut self) -> Result<Vec<RawThread>> {
        let mut states = Vec::new();
        for tid in thread_ids(self.pid)? {
            states.extend(self.read_state(tid)?);
        }
        Ok(states)
    }

    fn name(&self) -> &'static str {
        "procfs"
    }
}

impl ThreadFiles {
    fn open(pid: u32, tid: u32) -> io::Result<Self> {
        let syscall = File::open(format!("/proc/{pid}/task/{tid}/syscall"))?;
        Ok(Self { syscall, schedstat: Schedstat::open(pid, tid)? })
    }

    /// Return where the thread is blocked, or None if it is running or runnable. The file contains `running`,
    /// or `-1 SP PC` outside a system call, or the system call number, six arguments, SP and PC (fs/proc/base.c,
    /// `proc_pid_syscall`).
    fn read_syscall(&self) -> io::Result<Option<Blocked>> {
        let text = read(&self.syscall)?;
        let fields: Vec<&str> = text.split_whitespace().collect();
        let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
        let blocked = |syscall: &str, arg0: Option<&str>, sp: &str, ip: &str| {
            let arg0 = arg0.map_or(Some(0), hex);
            Some(Blocked { syscall: syscall.parse().ok()?, arg0: arg0?, sp: hex(sp)?, ip: hex(ip)? })
        };
        match fields[..] {
            ["running"] => Ok(None),
            [syscall, sp, ip] => blocked(syscall, None, sp, ip).map(Some).ok_or_else(|| malformed(&text)),
            [syscall, arg0, .., sp, ip] => {
                blocked(syscall, Some(arg0), sp, ip).map(Some).ok_or_else(|| malformed(&text))
            }
            _ => Err(malformed(&text)),
        }
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut bytes = [0; FILE_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("unexpected text {text:?}"))
}

fn has_exited(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

fn failed(error: &io::Error, doing: &str, pid: u32) -> Error {
    Error::from_os(error, &format!("{doing} in /proc/{pid}/task"), Kind::Procfs)
}
