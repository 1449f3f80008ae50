//! The snapshot sources that use a BPF task iterator. The sleepable program (Linux >= 5.18) copies the
//! stacks. The non-sleepable program (Linux >= 5.8) copies only the registers. `process_vm_readv` then copies
//! the stacks, and a second iteration shows which threads ran in between.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::iterator_link::{self, attach_to_process};
use super::loader::{self, Loaded, Variant};
use super::namespaces::in_container;
use super::record::parse_all;
use super::rotation::Rotation;
use super::{RawThread, Source};
use crate::bpfmap::Map;
use crate::error::{Error, Kind, Result};
use crate::memory;
use crate::pacing::Pacer;

/// Size of one read(). The kernel returns at most one buffer of the seq_file, which has 8 pages.
const READ_BYTES: usize = 64 * 1024;
const PAGE: usize = 4096;
/// Maximum size of the records held in memory at once, in bytes; enough for 1,000 threads.
const PART_BYTES: usize = 16 << 20;
/// Maximum size in bytes of the records that the non-sleepable program returns at once. They have no stacks; the
/// stacks, which are copied afterwards, then fit into [`PART_BYTES`].
const NOSLEEP_PART_BYTES: usize = 2 * READ_BYTES;
/// Maximum number of iterations per snapshot. The kernel ends an iteration early if the thread at
/// which a read() paused exits before the next read().
const PASSES: u32 = 3;
/// Minimum number of entries of the map that remembers threads between snapshots. Each entry takes about 100
/// bytes of kernel memory.
const MIN_ENTRIES: u32 = 4 << 10;
/// Maximum number of entries of this map.
const MAX_ENTRIES: u32 = 256 << 10;

/// `struct config` of snapshot.bpf.c.
#[derive(Clone, Copy)]
struct Config {
    tid: u32,
    stacks: bool,
    changed_only: bool,
    groups: u32,
    group: u32,
    budget: u64,
}

/// The configuration for copying one thread without limits; the caller sets `tid`.
const ALONE: Config =
    Config { tid: 0, stacks: true, changed_only: false, groups: 1, group: 0, budget: u64::MAX };

/// Copies the threads of one process with the task iterator.
pub struct BpfSource {
    loaded: Loaded,
    pid: u32,
    variant: Variant,
    /// The relocated program, which can be loaded again without searching the kernel's types.
    cached_program: Option<Vec<u8>>,
    /// Number of entries of the map that remembers threads.
    entries: u32,
    link: OwnedFd,
    /// True if the kernel can limit a link to one process (>= 6.1). Otherwise the program filters the
    /// threads.
    single_process: bool,
    /// The buffer for the records. It is reused unless threads still refer to it, because allocating 14 MB (for
    /// 1,000 threads) costs more than the copy itself. It has its full capacity from the start: if it grew, the
    /// allocator would keep the old memory.
    buffer: Arc<Vec<u8>>,
    progress: Option<Progress>,
    rotation: Rotation,
    /// Number of threads in the last snapshot.
    visited: usize,
    /// Size of the largest part of the last snapshot, in bytes.
    largest: usize,
    notes: Vec<String>,
}

/// A snapshot in progress.
struct Progress {
    iterator: File,
    config: Config,
    passes: u32,
    /// Ids of the threads that have been returned so far.
    seen: Vec<u32>,
    /// Ids of the threads that earlier passes returned.
    seen_before: FxHashSet<u32>,
    /// Number of threads visited in this pass, including threads that are only counted.
    visited: usize,
    largest: usize,
}

impl BpfSource {
    /// Load the program for process `pid`; see [`loader::load`].
    pub fn new(pid: u32, variant: Variant, cached_program: Option<&[u8]>) -> Result<Self> {
        let entries = entries_for(thread_count(pid));
        let loaded = loader::load(variant, cached_program, entries)?;
        let (link, single_process) = attach_to_process(loaded.program.as_raw_fd(), pid)?;
        Ok(Self {
            cached_program: loaded.relocated.clone().or_else(|| cached_program.map(<[u8]>::to_vec)),
            loaded,
            pid,
            variant,
            entries,
            link,
            single_process,
            buffer: new_buffer(),
            progress: None,
            rotation: Rotation::default(),
            visited: 0,
            largest: 0,
            notes: Vec::new(),
        })
    }

    /// Load the sleepable program if the kernel can run it and the process is not in a container, otherwise
    /// the non-sleepable one. Both report the same counts of context switches as the profiling programs; the
    /// source that reads /proc does not.
    pub fn best(pid: u32, kernel_stacks: bool) -> Result<Self> {
        let load = |sleepable| Self::new(pid, Variant { sleepable, kernel_stacks }, None);
        if in_container(pid) {
            return load(false);
        }
        load(true).or_else(|_| load(false))
    }

    /// If the map is too small for this many threads, load the program again with a larger map. The content
    /// of the old map is lost, so the next snapshot copies all threads.
    fn grow_map(&mut self, threads: usize) -> Result<()> {
        let entries = entries_for(threads);
        if entries <= self.entries {
            return Ok(());
        }
        let relocated = self.loaded.relocated.take();
        let mut loaded = loader::load(self.variant, self.cached_program.as_deref(), entries)?;
        (self.link, self.single_process) = attach_to_process(loaded.program.as_raw_fd(), self.pid)?;
        loaded.relocated = relocated;
        (self.loaded, self.entries) = (loaded, entries);
        Ok(())
    }

    fn configure(&self, config: Config) -> Result<()> {
        let tgid = if self.single_process { 0 } else { self.pid };
        let Config { tid, stacks, changed_only, groups, group, budget } = config;
        let mut value = Vec::with_capacity(32);
        for word in [tgid, tid, stacks.into(), changed_only.into(), groups, group] {
            value.extend_from_slice(&word.to_ne_bytes());
        }
        value.extend_from_slice(&budget.to_ne_bytes());
        let map = Map { descriptor: self.loaded.config.as_raw_fd(), key_bytes: 4, words: 4, per_cpu: false };
        map.update(&0u32.to_ne_bytes(), &value)
            .map_err(|error| Error::new(Kind::Internal, format!("configuring the snapshot program: {error}")))
    }

    fn start(link: RawFd) -> Result<File> {
        iterator_link::start(link).map_err(|error| failed(&error))
    }

    /// Read until a part is full or the iteration has ended; return the number of bytes and whether it has
    /// ended.
    fn fill(iterator: &mut File, bytes: &mut Vec<u8>, limit: usize) -> Result<(usize, bool)> {
        let mut filled = 0;
        let mut pacer = Pacer::start();
        while filled + READ_BYTES <= limit {
            if bytes.len() < filled + READ_BYTES {
                bytes.resize(filled + READ_BYTES, 0);
            }
            match iterator.read(&mut bytes[filled..filled + READ_BYTES]) {
                Ok(0) => return Ok((filled, true)),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&error)),
            }
            pacer.yield_if_due();
        }
        Ok((filled, false))
    }

    /// Return the next part of the snapshot (possibly empty), and whether the pass has ended.
    fn read_part(&mut self, progress: &mut Progress) -> Result<(Vec<RawThread>, bool)> {
        self.configure(progress.config)?; // copying a single thread may have changed the configuration
        if Arc::get_mut(&mut self.buffer).is_none() {
            self.buffer = new_buffer(); // the previous part is still in use
        }
        let bytes = Arc::get_mut(&mut self.buffer).expect("the buffer has no other owner");
        let limit = if self.variant.sleepable { PART_BYTES } else { NOSLEEP_PART_BYTES };
        let (filled, ended) = Self::fill(&mut progress.iterator, bytes, limit)?;
        progress.largest = progress.largest.max(filled);
        let (mut threads, counted) = parse_all(&self.buffer, filled);
        progress.visited += threads.len() + counted;
        threads.retain(|thread| !progress.seen_before.contains(&thread.tid));
        if !self.variant.sleepable {
            self.copy_stacks(&mut threads)?;
        }
        for thread in &threads {
            progress.config.budget = progress.config.budget.saturating_sub(self.rotation.count(thread));
            progress.seen.push(thread.tid);
        }
        Ok((threads, ended))
    }

    /// If the kernel ended the iteration early, start another pass unless the maximum is reached. Return true
    /// if a pass was started.
    fn start_next_pass(&mut self, progress: &mut Progress) -> Result<bool> {
        let expected = thread_count(self.pid);
        if progress.visited >= expected || progress.seen.is_empty() {
            return Ok(false);
        }
        if progress.passes == PASSES {
            self.notes.push("some threads are missing: others exited during the snapshot".to_owned());
            return Ok(false);
        }
        progress.iterator = Self::start(self.link.as_raw_fd())?;
        progress.seen_before = progress.seen.iter().copied().collect();
        progress.passes += 1;
        progress.visited = 0;
        Ok(true)
    }

    fn finish(&mut self, progress: &Progress) {
        self.visited = progress.seen.len();
        self.rotation.finish();
        self.largest = progress.largest;
    }

    fn visit_one(&mut self, tid: u32, stacks: bool) -> Result<Option<RawThread>> {
        self.configure(Config { tid, stacks, ..ALONE })?;
        let link = if self.single_process {
            match iterator_link::attach_to_thread(self.loaded.program.as_raw_fd(), tid) {
                Ok(link) => Some(link),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
                Err(error) => return Err(Error::from_os(&error, "attaching to one thread", Kind::Bpf)),
            }
        } else {
            None
        };
        let mut iterator = Self::start(link.as_ref().unwrap_or(&self.link).as_raw_fd())?;
        let mut bytes = Vec::new();
        let (filled, _) = Self::fill(&mut iterator, &mut bytes, PART_BYTES)?;
        bytes.truncate(filled);
        bytes.shrink_to_fit(); // the buffer lives as long as the thread's stack
        let (threads, _) = parse_all(&Arc::new(bytes), filled);
        Ok(threads.into_iter().find(|thread| thread.tid == tid))
    }

    /// Copy the stacks of threads whose registers were copied by the non-sleepable program. Mark the threads
    /// that have run since.
    fn copy_stacks(&mut self, threads: &mut [RawThread]) -> Result<()> {
        let mut pacer = Pacer::start();
        for thread in threads.iter_mut().filter(|thread| thread.stack_wanted > 0) {
            let stack = memory::read_some(self.pid, thread.registers.sp, thread.stack_wanted);
            thread.stack = stack.unwrap_or_default().into();
            pacer.yield_if_due();
        }
        let now: FxHashMap<u32, RawThread> =
            self.read_states()?.into_iter().map(|thread| (thread.tid, thread)).collect();
        for thread in threads.iter_mut().filter(|thread| thread.stack_wanted > 0) {
            thread.compare(now.get(&thread.tid));
        }
        Ok(())
    }
}

impl Source for BpfSource {
    fn begin(&mut self, stack_bytes: u64) -> Result<()> {
        self.notes.clear();
        if let Err(error) = self.grow_map(self.visited) {
            self.notes.push(format!(
                "cannot enlarge the map of copied threads, so more threads are copied than necessary: {}",
                error.detail
            ));
        }
        let (groups, group) = self.rotation.begin(stack_bytes);
        let budget = stack_bytes;
        self.progress = Some(Progress {
            iterator: Self::start(self.link.as_raw_fd())?,
            config: Config { tid: 0, stacks: true, changed_only: true, groups, group, budget },
            passes: 1,
            seen: Vec::with_capacity(self.visited),
            seen_before: FxHashSet::default(),
            visited: 0,
            largest: 0,
        });
        Ok(())
    }

    fn next(&mut self) -> Result<Vec<RawThread>> {
        while let Some(mut progress) = self.progress.take() {
            let (threads, ended) = self.read_part(&mut progress)?;
            if !ended || self.start_next_pass(&mut progress)? {
                self.progress = Some(progress);
            } else {
                self.finish(&progress);
            }
            if !threads.is_empty() {
                return Ok(threads);
            }
        }
        // The first snapshot copies all threads, and needs much more memory than later ones, which copy only
        // the threads that have run.
        if let Some(bytes) = Arc::get_mut(&mut self.buffer)
            && bytes.len() > 4 * (self.largest + READ_BYTES)
        {
            release_tail(bytes, self.largest + READ_BYTES);
        }
        Ok(Vec::new())
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn copy_one(&mut self, tid: u32) -> Result<Option<RawThread>> {
        let mut thread = self.visit_one(tid, true)?;
        if let Some(thread) = thread.as_mut().filter(|thread| thread.stack_wanted > 0) {
            let stack = memory::read_some(self.pid, thread.registers.sp, thread.stack_wanted);
            thread.stack = stack.unwrap_or_default().into();
            thread.compare(self.visit_one(tid, false)?.as_ref());
        }
        Ok(thread)
    }

    fn read_state(&mut self, tid: u32) -> Result<Option<RawThread>> {
        self.visit_one(tid, false)
    }

    fn read_states(&mut self) -> Result<Vec<RawThread>> {
        self.configure(Config { stacks: false, ..ALONE })?;
        let mut iterator = Self::start(self.link.as_raw_fd())?;
        let mut states = Vec::new();
        loop {
            let mut bytes = Vec::new();
            let (filled, ended) = Self::fill(&mut iterator, &mut bytes, PART_BYTES)?;
            let (threads, _) = parse_all(&Arc::new(bytes), filled);
            states.extend(threads.into_iter().map(RawThread::without_stack));
            if ended {
                return Ok(states);
            }
        }
    }

    fn name(&self) -> &'static str {
        if self.variant.sleepable { "bpf" } else { "bpf-nosleep" }
    }

    fn relocated_program(&self) -> Option<&[u8]> {
        self.loaded.relocated.as_deref()
    }
}

fn new_buffer() -> Arc<Vec<u8>> {
    Arc::new(Vec::with_capacity(PART_BYTES))
}

/// Truncate `bytes` to `length` and return the pages beyond it to the kernel. The capacity does not change.
fn release_tail(bytes: &mut Vec<u8>, length: usize) {
    bytes.truncate(length);
    let free = bytes.spare_capacity_mut();
    let before_page = free.as_ptr().align_offset(PAGE);
    let pages = free.len().saturating_sub(before_page) / PAGE;
    if let Some(first) = free.get_mut(before_page) {
        // SAFETY: the range consists of whole pages of the vector's spare capacity, which holds no values.
        // Private anonymous memory reads as zeros after MADV_DONTNEED.
        unsafe { libc::madvise(first.as_mut_ptr().cast(), pages * PAGE, libc::MADV_DONTNEED) };
    }
}

/// Return the number of entries of the map: up to the maximum, at least twice the number of threads, so that
/// exited threads are evicted before live ones.
fn entries_for(threads: usize) -> u32 {
    let entries = u32::try_from(2 * threads).unwrap_or(MAX_ENTRIES);
    entries.clamp(MIN_ENTRIES, MAX_ENTRIES).next_power_of_two()
}

/// Return the process's thread count according to the kernel, or 0 if the process has exited.
fn thread_count(pid: u32) -> usize {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    fields.and_then(|fields| fields.split_whitespace().nth(17)?.parse().ok()).unwrap_or(0)
}

fn failed(error: &io::Error) -> Error {
    Error::from_os(error, "running the task iterator", Kind::Bpf)
}
