//! Opens the same perf event on each CPU, or for each thread of a process on each CPU.
//!
//! The events of one CPU share a ring buffer. The kernel maps no ring buffer for an inherited event that covers
//! all CPUs, so each thread's events are opened per CPU too. Threads that are created later inherit them.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::unistd;
use perf_event_open_sys as sys;
use rustc_hash::{FxHashMap, FxHashSet};
use sys::bindings::perf_event_attr;

use crate::descriptors;
use crate::error::{Error, Kind, Result};
use crate::perf_event::{self, Ring, long};
use crate::snapshot::task::thread_ids;

/// Maximum number of times that the threads are listed to find new ones. Once is enough unless a thread that has
/// no events yet creates a thread at that moment.
const MAX_PASSES: usize = 10;

/// A function that takes the type, the flags and the contents of a record.
type Take<'take> = dyn FnMut(&Owners, u32, u16, &[u8]) + 'take;

/// Open events and their rings.
pub(super) struct EventSet {
    rings: Vec<Ring>,
    /// The first events, one per CPU, own the rings. The others write to the same rings.
    events: Vec<OwnedFd>,
    pub(super) owners: Owners,
    lost: u64,
}

/// The threads for which events were opened.
#[derive(Default)]
pub(super) struct Owners {
    /// The thread of each event by the event's id. Inherited events have the id of the original.
    pub(super) by_event: FxHashMap<u64, u32>,
    /// The threads that have their own events.
    pub(super) tids: FxHashSet<u32>,
}

impl Owners {
    /// Return true if the thread has its own events and this event is inherited. That happens if the
    /// thread was created after its parent's events were opened, and before the threads were listed.
    pub(super) fn is_duplicate(&self, tid: u32, event: u64) -> bool {
        self.by_event.get(&event).is_some_and(|owner| *owner != tid) && self.tids.contains(&tid)
    }
}

impl EventSet {
    /// Open one disabled event per CPU for all processes.
    ///
    /// Each ring has the largest size in `ring_bytes` that the limit on locked memory permits; all have the
    /// same size. Errors: `Rights`, `Perf`.
    pub(super) fn of_cpus(
        attributes: perf_event_attr,
        cpus: &[i32],
        ring_bytes: &RangeInclusive<usize>,
    ) -> Result<Self> {
        let mut opened = Self::empty();
        opened.add(attributes, -1, cpus, ring_bytes).map_err(|error| explain(&error))?;
        Ok(opened)
    }

    /// Open one disabled event per CPU for each thread of process `pid`; see `of_cpus`.
    ///
    /// Errors: `Rights`, `Gone`, `Perf`.
    pub(super) fn of_threads(
        attributes: perf_event_attr,
        pid: u32,
        cpus: &[i32],
        ring_bytes: &RangeInclusive<usize>,
    ) -> Result<Self> {
        let mut opened = Self::empty();
        descriptors::raise_limit(u64::MAX); // each event needs a descriptor
        for _ in 0..MAX_PASSES {
            let mut tids = thread_ids(pid)?;
            tids.retain(|tid| opened.owners.tids.insert(*tid));
            if tids.is_empty() {
                break;
            }
            for tid in tids {
                opened
                    .add(attributes, tid.cast_signed(), cpus, ring_bytes)
                    .map_err(|error| explain(&error))?;
            }
        }
        if opened.events.is_empty() {
            return Err(Error::new(Kind::Gone, format!("process {pid} has no threads")));
        }
        Ok(opened)
    }

    fn empty() -> Self {
        Self { rings: Vec::new(), events: Vec::new(), owners: Owners::default(), lost: 0 }
    }

    /// Open one event per CPU for a thread (-1: all). A thread that has exited has no events.
    pub(super) fn add(
        &mut self,
        attributes: perf_event_attr,
        tid: i32,
        cpus: &[i32],
        ring_bytes: &RangeInclusive<usize>,
    ) -> io::Result<()> {
        let opened = cpus.iter().map(|cpu| perf_event::open(attributes, tid, *cpu)).collect();
        let events: Vec<OwnedFd> = match opened {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
            opened => opened?,
        };
        if self.rings.is_empty() {
            self.rings = map_rings(&events, ring_bytes)?;
        } else {
            for (event, owner) in events.iter().zip(&self.events) {
                // SAFETY: both descriptors are open, and the ioctl takes no pointers.
                check(unsafe { sys::ioctls::SET_OUTPUT(event.as_raw_fd(), owner.as_raw_fd()) })?;
            }
        }
        if let Ok(tid) = u32::try_from(tid) {
            for event in &events {
                self.owners.by_event.insert(event_id(event)?, tid);
            }
        }
        self.events.extend(events);
        Ok(())
    }

    /// Enable the events.
    pub(super) fn begin(&mut self) -> Result<()> {
        for event in &self.events {
            // SAFETY: the descriptor is open, and the ioctl takes a number.
            check(unsafe { sys::ioctls::ENABLE(event.as_raw_fd(), 0) }).map_err(|error| explain(&error))?;
        }
        Ok(())
    }

    /// Change the period of the events.
    pub(super) fn set_period(&mut self, period: u64) -> Result<()> {
        for event in &self.events {
            // SAFETY: the descriptor is open, and the kernel reads a u64 at the address, which is valid
            // during the call.
            check(unsafe { sys::ioctls::PERIOD(event.as_raw_fd(), &raw const period as u64) })
                .map_err(|error| explain(&error))?;
        }
        Ok(())
    }

    /// Disable and close the events. Records that are already in the rings stay there.
    pub(super) fn end(&mut self) {
        for event in self.events.drain(..) {
            // SAFETY: the descriptor is open, and the ioctl takes a number and cannot fail.
            unsafe { sys::ioctls::DISABLE(event.as_raw_fd(), 0) };
        }
    }

    /// Return the number of records lost because a ring was full.
    pub(super) fn lost(&self) -> u64 {
        self.lost
    }

    /// Pass the type, the flags and the contents of each available record to `take`. At most `max` records are
    /// read from each ring.
    pub(super) fn read(&mut self, max: usize, take: &mut Take<'_>) {
        let Self { rings, owners, lost, .. } = self;
        for ring in rings {
            ring.read_with_flags(max, &mut |kind, flags, body| match kind {
                perf_event::LOST => *lost += long(body, 8).unwrap_or(0),
                _ => take(owners, kind, flags, body),
            });
        }
    }
}

/// Map the rings, all of the same size: the largest of `bytes` that the limit on locked memory permits.
fn map_rings(events: &[OwnedFd], bytes: &RangeInclusive<usize>) -> io::Result<Vec<Ring>> {
    let mut size = *bytes.end();
    loop {
        let mapped = events.iter().map(|event| Ring::map(event, size)).collect();
        match mapped {
            Err(_) if size > *bytes.start() => size /= 2,
            Err(error) => {
                let why = format!("mapping a ring buffer (see kernel.perf_event_mlock_kb): {error}");
                return Err(io::Error::other(why));
            }
            mapped => return mapped,
        }
    }
}

/// Return the id of an event, which its records contain. With PERF_FORMAT_ID, a read returns the value and the id.
fn event_id(event: &OwnedFd) -> io::Result<u64> {
    let mut words = [0; 16];
    unistd::read(event, &mut words)?;
    long(&words, 8).ok_or_else(|| io::Error::other("a short read from an event"))
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn explain(error: &io::Error) -> Error {
    let kind = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Kind::Rights,
        _ => Kind::Perf,
    };
    let why = match error.raw_os_error() {
        Some(libc::EMFILE) => " (each thread needs one descriptor per CPU; see ulimit -n)",
        _ => "",
    };
    Error::new(kind, format!("opening perf events: {error}{why}"))
}
