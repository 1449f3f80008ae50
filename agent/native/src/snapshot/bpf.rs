//! The snapshot source that stops nothing: a sleepable BPF task iterator (kernel >= 5.18).

use std::fs::{self, File};
use std::io::{self, Read};
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::fitted::{self, Loaded};
use super::record::parse_all;
use super::turns::Turns;
use super::{RawThread, Source};
use crate::bpfmap::Map;
use crate::error::{Error, Kind, Result};
use crate::programs::owned;
use crate::turn::Turn;

/// Size of one read(). The kernel returns at most the seq_file's buffer, which has 8 pages.
const READ_BYTES: usize = 64 * 1024;
const PAGE: usize = 4096;
/// Maximum bytes of records that are held in memory at once; enough for 1,000 threads.
const PART_BYTES: usize = 16 << 20;
/// How often an iteration is started in all. The kernel ends one early if the thread at which a read() paused
/// exits before the next read().
const PASSES: u32 = 3;
/// Bounds of the number of threads that the program remembers between snapshots. Each takes about 100 bytes
/// of kernel memory.
const FEWEST_ENTRIES: u32 = 4 << 10;
const MOST_ENTRIES: u32 = 256 << 10;

/// `struct config` of snapshot.bpf.c.
#[derive(Clone, Copy)]
struct Config {
    tid: u32,
    stacks: bool,
    changed_only: bool,
    turns: u32,
    turn: u32,
    budget: u64,
}

/// The configuration for copying one thread without limits; `tid` is to be set.
const ALONE: Config =
    Config { tid: 0, stacks: true, changed_only: false, turns: 1, turn: 0, budget: u64::MAX };

/// Copies the threads of one process by the task iterator.
pub struct BpfSource {
    loaded: Loaded,
    pid: u32,
    kernel_stacks: bool,
    /// The relocated program, to load it again without searching the kernel's types.
    kept: Option<Vec<u8>>,
    /// Number of entries of the map that remembers threads.
    entries: u32,
    link: OwnedFd,
    /// True if the kernel can limit a link to one process (>= 6.1). Otherwise the program filters.
    narrow: bool,
    /// Reused for all snapshots, because getting 14 MB from the kernel costs more than the copy itself. It is
    /// never reallocated or freed, because the allocator would keep the old memory.
    buffer: Arc<Vec<u8>>,
    snapshot: Option<Snapshot>,
    turns: Turns,
    /// Number of threads in the last snapshot.
    visited: usize,
    /// Bytes of the largest part of the last snapshot.
    largest: usize,
    notes: Vec<String>,
}

/// A snapshot in progress.
struct Snapshot {
    iterator: File,
    config: Config,
    passes: u32,
    /// Ids of the threads that were returned so far.
    seen: Vec<u32>,
    /// Ids of the threads that earlier passes returned.
    seen_before: FxHashSet<u32>,
    /// Number of threads visited in this pass, including those that are only counted.
    visited: usize,
    largest: usize,
}

impl BpfSource {
    /// Load the program for process `pid`; see [`fitted::load`].
    pub fn new(pid: u32, kernel_stacks: bool, kept: Option<&[u8]>) -> Result<Self> {
        let entries = entries_for(thread_count(pid));
        let loaded = fitted::load(kernel_stacks, kept, entries)?;
        let (link, narrow) = attach_to_process(&loaded, pid)?;
        Ok(Self {
            kept: loaded.fitted.clone().or_else(|| kept.map(<[u8]>::to_vec)),
            loaded,
            pid,
            kernel_stacks,
            entries,
            link,
            narrow,
            buffer: new_buffer(),
            snapshot: None,
            turns: Turns::default(),
            visited: 0,
            largest: 0,
            notes: Vec::new(),
        })
    }

    /// Load the program again with a map for so many threads, if the current one is too small. What the old
    /// program remembered is lost, so the next snapshot copies all threads.
    fn make_room(&mut self, threads: usize) -> Result<()> {
        let entries = entries_for(threads);
        if entries <= self.entries {
            return Ok(());
        }
        let fitted = self.loaded.fitted.take();
        let mut loaded = fitted::load(self.kernel_stacks, self.kept.as_deref(), entries)?;
        (self.link, self.narrow) = attach_to_process(&loaded, self.pid)?;
        loaded.fitted = fitted;
        (self.loaded, self.entries) = (loaded, entries);
        Ok(())
    }

    fn configure(&self, config: Config) -> Result<()> {
        let tgid = if self.narrow { 0 } else { self.pid };
        let Config { tid, stacks, changed_only, turns, turn, budget } = config;
        let mut value = Vec::with_capacity(32);
        for word in [tgid, tid, stacks.into(), changed_only.into(), turns, turn] {
            value.extend_from_slice(&word.to_ne_bytes());
        }
        value.extend_from_slice(&budget.to_ne_bytes());
        let map = Map { descriptor: self.loaded.config.as_raw_fd(), key_bytes: 4, words: 4, per_cpu: false };
        map.update(&0u32.to_ne_bytes(), &value)
            .map_err(|error| Error::new(Kind::Internal, format!("configuring the snapshot program: {error}")))
    }

    fn start(link: RawFd) -> Result<File> {
        // SAFETY: the descriptor of the link is open, and the call takes no pointers.
        let iterator = owned(unsafe { libbpf_sys::bpf_iter_create(link) }).map_err(|error| failed(&error))?;
        Ok(File::from(iterator))
    }

    /// Read until a part is full or the iteration has ended; return the number of bytes and whether it has
    /// ended.
    fn fill(iterator: &mut File, bytes: &mut Vec<u8>) -> Result<(usize, bool)> {
        let mut filled = 0;
        let mut turn = Turn::begin();
        while filled + READ_BYTES <= PART_BYTES {
            if bytes.len() < filled + READ_BYTES {
                bytes.resize(filled + READ_BYTES, 0);
            }
            match iterator.read(&mut bytes[filled..filled + READ_BYTES]) {
                Ok(0) => return Ok((filled, true)),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error)),
            }
            turn.give_way();
        }
        Ok((filled, false))
    }

    /// Return the next part of the snapshot, which may be empty, and whether the pass has ended.
    fn read_part(&mut self, snapshot: &mut Snapshot) -> Result<(Vec<RawThread>, bool)> {
        self.configure(snapshot.config)?; // copies of single threads change it in between
        if Arc::get_mut(&mut self.buffer).is_none() {
            self.buffer = new_buffer(); // the last part is still in use
        }
        let bytes = Arc::get_mut(&mut self.buffer).expect("just made or shown to be ours");
        let (filled, ended) = Self::fill(&mut snapshot.iterator, bytes)?;
        snapshot.largest = snapshot.largest.max(filled);
        let (mut threads, counted) = parse_all(&self.buffer, filled);
        snapshot.visited += threads.len() + counted;
        threads.retain(|thread| !snapshot.seen_before.contains(&thread.tid));
        for thread in &threads {
            snapshot.config.budget = snapshot.config.budget.saturating_sub(self.turns.count(thread));
            snapshot.seen.push(thread.tid);
        }
        Ok((threads, ended))
    }

    /// Start another pass if the kernel ended the iteration early and passes are left; return whether it did.
    fn starts_again(&mut self, snapshot: &mut Snapshot) -> Result<bool> {
        let there = thread_count(self.pid);
        if snapshot.visited >= there || snapshot.seen.is_empty() {
            return Ok(false);
        }
        if snapshot.passes == PASSES {
            self.notes.push("some threads are missing: others ended while they were copied".to_owned());
            return Ok(false);
        }
        snapshot.iterator = Self::start(self.link.as_raw_fd())?;
        snapshot.seen_before = snapshot.seen.iter().copied().collect();
        snapshot.passes += 1;
        snapshot.visited = 0;
        Ok(true)
    }

    fn finish(&mut self, snapshot: &Snapshot) {
        self.visited = snapshot.seen.len();
        self.turns.finish();
        self.largest = snapshot.largest;
    }

    fn visit_one(&mut self, tid: u32, stacks: bool) -> Result<Option<RawThread>> {
        self.configure(Config { tid, stacks, ..ALONE })?;
        let link = if self.narrow {
            match attach(self.loaded.program.as_raw_fd(), Some(LinkTask { tid, pid: 0 })) {
                Ok(link) => Some(link),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                Err(error) => return Err(Error::from_os(&error, "attaching to one thread", Kind::Bpf)),
            }
        } else {
            None
        };
        let mut iterator = Self::start(link.as_ref().unwrap_or(&self.link).as_raw_fd())?;
        let mut bytes = Vec::new();
        let (filled, _) = Self::fill(&mut iterator, &mut bytes)?;
        bytes.truncate(filled);
        bytes.shrink_to_fit(); // the buffer lives as long as the thread's stack
        let (threads, _) = parse_all(&Arc::new(bytes), filled);
        Ok(threads.into_iter().find(|thread| thread.tid == tid))
    }
}

impl Source for BpfSource {
    fn begin(&mut self, stack_bytes: u64) -> Result<()> {
        self.notes.clear();
        if let Err(error) = self.make_room(self.visited) {
            self.notes.push(format!("more threads are copied than necessary: {}", error.detail));
        }
        let (turns, turn) = self.turns.begin(stack_bytes);
        let budget = stack_bytes;
        self.snapshot = Some(Snapshot {
            iterator: Self::start(self.link.as_raw_fd())?,
            config: Config { tid: 0, stacks: true, changed_only: true, turns, turn, budget },
            passes: 1,
            seen: Vec::with_capacity(self.visited),
            seen_before: FxHashSet::default(),
            visited: 0,
            largest: 0,
        });
        Ok(())
    }

    fn next(&mut self) -> Result<Vec<RawThread>> {
        while let Some(mut snapshot) = self.snapshot.take() {
            let (threads, ended) = self.read_part(&mut snapshot)?;
            if !ended || self.starts_again(&mut snapshot)? {
                self.snapshot = Some(snapshot);
            } else {
                self.finish(&snapshot);
            }
            if !threads.is_empty() {
                return Ok(threads);
            }
        }
        // The first snapshot copies all threads and needs much more than later ones, which copy only those
        // that ran.
        if let Some(bytes) = Arc::get_mut(&mut self.buffer)
            && bytes.len() > 4 * (self.largest + READ_BYTES)
        {
            give_back(bytes, self.largest + READ_BYTES);
        }
        Ok(Vec::new())
    }

    fn notes(&self) -> &[String] {
        &self.notes
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

fn new_buffer() -> Arc<Vec<u8>> {
    Arc::new(Vec::with_capacity(PART_BYTES))
}

/// Truncate `bytes` to `length` and return the pages beyond it to the kernel. The capacity stays.
fn give_back(bytes: &mut Vec<u8>, length: usize) {
    bytes.truncate(length);
    let free = bytes.spare_capacity_mut();
    let before_page = free.as_ptr().align_offset(PAGE);
    let pages = free.len().saturating_sub(before_page) / PAGE;
    if let Some(first) = free.get_mut(before_page) {
        // SAFETY: the range has whole pages of the vector's spare capacity, which holds no values. Private
        // anonymous memory reads as zeros after MADV_DONTNEED.
        unsafe { libc::madvise(first.as_mut_ptr().cast(), pages * PAGE, libc::MADV_DONTNEED) };
    }
}

/// Return the size of the map: at least twice the threads, so that the ids of exited threads are evicted
/// before those of live ones.
fn entries_for(threads: usize) -> u32 {
    let wanted = u32::try_from(2 * threads).unwrap_or(MOST_ENTRIES);
    wanted.clamp(FEWEST_ENTRIES, MOST_ENTRIES).next_power_of_two()
}

/// Return the kernel's count of the process's threads, or 0 if the process has ended.
fn thread_count(pid: u32) -> usize {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    fields.and_then(|fields| fields.split_whitespace().nth(17)?.parse().ok()).unwrap_or(0)
}

fn failed(error: &io::Error) -> Error {
    Error::from_os(error, "running the task iterator", Kind::Bpf)
}

fn attach_to_process(loaded: &Loaded, pid: u32) -> Result<(OwnedFd, bool)> {
    let program = loaded.program.as_raw_fd();
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

#[derive(Clone, Copy)]
struct LinkTask {
    tid: u32,
    pid: u32,
}

/// Run an iterator program that writes no records for each thread of process `pid`, or of all processes if
/// the kernel cannot limit the link to one. A process that has ended has no threads.
pub fn visit(program: RawFd, pid: u32) -> io::Result<()> {
    let link = match attach(program, Some(LinkTask { tid: 0, pid })) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        Err(_) => attach(program, None)?,
        Ok(link) => link,
    };
    // SAFETY: the descriptor of the link is open, and the call takes no pointers.
    let mut iterator = File::from(owned(unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) })?);
    io::copy(&mut iterator, &mut io::sink()).map(drop)
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
