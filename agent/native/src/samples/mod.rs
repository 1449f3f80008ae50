//! Stacks that BPF programs captured: read out of a ring buffer, unwound, named and added up.
//!
//! The programs of both profiles are in `programs`; any other one that sends the records of
//! probes/include/sample.h will do.

pub mod programs;
pub mod record;
mod ring;
mod stacks;
pub mod waits;

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::{Error, Kind, Result};
use crate::look::Trust;
use crate::modules::Modules;
use crate::names::Frame;
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::{Motion, RawThread, Registers, Source};
use crate::symbols::DebugSearch;
use crate::turn::Turn;
use crate::unwind::{End, Unwinder};
use record::{Account, Capture, Record, parse};
use ring::Ring;
use stacks::Stacks;
use waits::Waits;

/// Records taken at a time, so that a busy server cannot keep us reading for ever.
const MOST_RECORDS: usize = 50_000;
/// Between two readings of the process's maps, where a stack leads to code that was not mapped before.
const MAPS_EVERY: Duration = Duration::from_secs(1);
/// Distinct counts beyond which threads are not told apart any more: they are thread 0.
const MOST_COUNTS: usize = 200_000;

/// Where a thread was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// By `Samples::frames`.
    pub stack: u32,
    /// How far to believe it.
    pub trust: Trust,
    /// The system call it was in, or -1.
    pub syscall: i32,
    /// The descriptor that such a call is about, for those that were asked for; else -1.
    pub file: i32,
}

/// How often and with what weight something was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Records.
    pub count: u64,
    /// The sum of their weights.
    pub weight: u64,
}

/// How to name stacks.
#[derive(Debug, Clone, Default)]
pub struct Naming {
    /// Where debug files are.
    pub search: DebugSearch,
    /// Show inlined calls.
    pub inlines: bool,
    /// Show the kernel's functions.
    pub kernel: bool,
    /// System calls whose first argument is a descriptor worth telling.
    pub file_calls: FxHashSet<i32>,
}

/// The captured stacks of one process, by kind, thread and place.
pub struct Samples {
    ring: Ring,
    taking: Taking,
}

/// All but the ring.
struct Taking {
    modules: Modules,
    maps_read: Instant,
    unwinder: Unwinder,
    stacks: Stacks,
    file_calls: FxHashSet<i32>,
    counts: FxHashMap<(u32, u32, Place), Count>,
    comms: FxHashMap<u32, String>,
    waits: Waits,
    /// Taken from the ring.
    records: u64,
    bytes: u64,
}

impl Samples {
    /// For process `pid`, from the ring with this descriptor (ours to keep open no longer than this call).
    ///
    /// Errors: `Gone`, `Rights`, `Internal` for what is no ring.
    pub fn new(pid: u32, ring: RawFd, naming: Naming) -> Result<Self> {
        let Naming { search, inlines, kernel, file_calls } = naming;
        let opened = Ring::open(ring);
        let ring = opened
            .map_err(|error| Error::new(Kind::Internal, format!("opening the ring buffer: {error}")))?;
        let modules = Modules::new(pid, search)?;
        if modules.all().is_empty() {
            let detail = format!("process {pid} has no code mapped: it is ending, or a kernel thread");
            return Err(Error::new(Kind::Gone, detail));
        }
        let taking = Taking {
            unwinder: Unwinder::new(&modules),
            modules,
            maps_read: Instant::now(),
            stacks: Stacks::new(inlines, kernel),
            file_calls,
            counts: FxHashMap::default(),
            comms: FxHashMap::default(),
            waits: Waits::default(),
            records: 0,
            bytes: 0,
        };
        Ok(Self { ring, taking })
    }

    /// Takes what is in the ring; how many records that were.
    pub fn read(&mut self) -> io::Result<usize> {
        let mut turn = Turn::begin();
        let taking = &mut self.taking;
        taking.unwinder.refill();
        self.ring.read(MOST_RECORDS, &mut |bytes| {
            taking.take(bytes);
            turn.give_way();
        })
    }

    /// What was counted so far: (kind, thread, place).
    pub fn counts(&self) -> &FxHashMap<(u32, u32, Place), Count> {
        &self.taking.counts
    }

    /// The frames of a stack, innermost first.
    pub fn frames(&self, stack: u32) -> impl Iterator<Item = &Frame> {
        self.taking.stacks.frames(stack)
    }

    /// The modules as they were read last.
    pub fn modules(&self) -> &Modules {
        &self.taking.modules
    }

    /// The names of the threads that were seen.
    pub fn comms(&self) -> &FxHashMap<u32, String> {
        &self.taking.comms
    }

    /// Records taken from the ring, and the bytes of stack in them.
    pub fn taken(&self) -> (u64, u64) {
        (self.taking.records, self.taking.bytes)
    }

    /// Gives waits that are under way the stack that a look shows; see `Waits`.
    pub fn look(&mut self, source: &mut BpfSource) -> Result<()> {
        let threads = source.copy_all()?;
        self.read().map_err(|error| Error::from_os(&error, "reading the ring buffer", Kind::Internal))?;
        self.taking.under_way(&threads);
        Ok(())
    }

    /// Settle a profile of waits that ended at `ended`, from the accounts of all threads. `source` shows the
    /// stacks of waits that nobody has seen yet.
    pub fn settle(
        &mut self,
        source: Option<&mut BpfSource>,
        accounts: &[(u32, Account)],
        ended: u64,
    ) -> Result<&Waits> {
        let mut threads = source.and_then(|source| source.copy_all().ok()).unwrap_or_default();
        self.read().map_err(|error| Error::from_os(&error, "reading the ring buffer", Kind::Internal))?;
        let taking = &mut self.taking;
        for thread in &threads {
            taking.comms.entry(thread.tid).or_insert_with(|| thread.comm.clone());
        }
        // The wait that a thread began since the end would take the place of the one it was in at the end.
        let at_end: FxHashMap<u32, u64> =
            accounts.iter().map(|(tid, account)| (*tid, account.switches)).collect();
        threads.retain(|thread| at_end.get(&thread.tid) == Some(&thread.switches));
        taking.under_way(&threads);
        for (tid, account) in accounts {
            taking.settle(*tid, account, ended);
        }
        Ok(&taking.waits)
    }
}

impl Taking {
    fn take(&mut self, bytes: &[u8]) {
        self.records += 1;
        match parse(bytes) {
            Some(Record::Sample(capture)) => {
                self.bytes += capture.stack.len() as u64;
                let place = self.place(&capture, Trust::OnCpu);
                let tid = if self.counts.len() < MOST_COUNTS { capture.tid } else { 0 };
                let count = self.counts.entry((capture.kind, tid, place)).or_default();
                count.count += 1;
                count.weight = count.weight.wrapping_add(capture.weight);
                self.comms.insert(tid, capture.comm);
            }
            Some(Record::WaitBegins(mut capture)) => {
                self.bytes += capture.stack.len() as u64;
                let scheduler = self.stacks.in_scheduler(&capture.kernel);
                capture.kernel.drain(..scheduler);
                let place = self.place(&capture, Trust::Exact);
                self.waits.begins(capture.tid, place, capture.weight);
                self.comms.insert(capture.tid, capture.comm);
            }
            Some(Record::WaitEnds(tid, end)) => self.waits.ends(tid, end),
            Some(Record::ThreadEnds(tid, at, account, comm)) => {
                self.comms.remove(&tid);
                self.waits.settle(tid, comm, &account, at);
            }
            None => {}
        }
    }

    fn settle(&mut self, tid: u32, account: &Account, ended: u64) {
        let comm = self.comms.get(&tid).cloned().unwrap_or_default();
        self.waits.settle(tid, comm, account, ended);
    }

    /// The waits that these threads are in, unless they are known.
    fn under_way(&mut self, threads: &[RawThread]) {
        self.unwinder.refill();
        let mut turn = Turn::begin();
        for thread in threads.iter().filter(|thread| thread.motion == Motion::Still) {
            if self.waits.knows(thread.tid, thread.switches) {
                continue;
            }
            turn.give_way();
            let file = self.file(thread.syscall, thread.arg0);
            let (stack, trust) =
                self.walk(thread.registers, &thread.stack, &thread.kernel, &thread.returns, Trust::Exact);
            let place = Place { stack, trust, syscall: thread.syscall, file };
            self.waits.begins(thread.tid, place, thread.switches);
            self.comms.insert(thread.tid, thread.comm.clone());
        }
    }

    fn place(&mut self, capture: &Capture<'_>, sound: Trust) -> Place {
        let Capture { registers, stack, kernel, returns, syscall, arg0, .. } = capture;
        let (stack, trust) = self.walk(*registers, stack, kernel, returns, sound);
        Place { stack, trust, syscall: *syscall, file: self.file(*syscall, *arg0) }
    }

    fn file(&self, syscall: i32, arg0: u64) -> i32 {
        if self.file_calls.contains(&syscall) { arg0 as i32 } else { -1 }
    }

    fn walk(
        &mut self,
        registers: Registers,
        stack: &[u8],
        kernel: &[u64],
        returns: &[(u64, u64)],
        sound: Trust,
    ) -> (u32, Trust) {
        let mut walk = self.unwinder.walk(&self.modules, registers, stack, returns);
        // A plugin that was loaded since, for one.
        if walk.end == End::Elsewhere && self.maps_changed() {
            walk = self.unwinder.walk(&self.modules, registers, stack, returns);
        }
        let trust = match walk.end {
            End::Root => sound,
            End::BeyondCopy => Trust::Truncated,
            End::Lost | End::Elsewhere | End::Budget => Trust::Incomplete,
        };
        (self.stacks.number(&self.modules, &walk.addresses, kernel), trust)
    }

    /// Reads the maps again; false where that was just done, or shows nothing new, or the process ended: what
    /// is known of it goes on to serve.
    fn maps_changed(&mut self) -> bool {
        if self.maps_read.elapsed() < MAPS_EVERY {
            return false;
        }
        self.maps_read = Instant::now();
        if !self.modules.refresh().unwrap_or(false) {
            return false;
        }
        self.unwinder = self.unwinder.renewed(&self.modules);
        self.stacks.forget_addresses();
        true
    }
}
