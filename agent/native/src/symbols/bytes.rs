//! Pieces of a file (or of memory) that stay valid for as long as somebody holds them.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, UncheckedAdvice};

use super::kept::{self, Kept};
use super::limits;

/// What the bytes are backed by.
enum Backing {
    /// In the confined child only, which may die of a truncated file.
    Map(Mmap),
    Heap {
        data: Vec<u8>,
        _kept: Kept,
    },
}

/// A range of an immutable buffer (or mapping); a clone costs one reference count.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    /// The whole of a mapped file.
    pub(super) fn from_map(map: Mmap) -> Self {
        let range = 0..map.len();
        Self { backing: Arc::new(Backing::Map(map)), range }
    }

    /// The part at `offset` of `size` bytes, or `None` where these bytes do not have it.
    pub fn part(&self, offset: u64, size: u64) -> Option<Self> {
        let start = self.range.start.checked_add(usize::try_from(offset).ok()?)?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        (end <= self.range.end).then(|| Self { backing: Arc::clone(&self.backing), range: start..end })
    }

    /// Give the pages of a mapped file back to the kernel, which reads them again when they are needed: who
    /// has scanned a file must not be charged for all of it. Does nothing to a buffer.
    pub fn release(&self) {
        if let Backing::Map(map) = &*self.backing {
            let page = 4096; // the kernel refuses a smaller one than its own, and then nothing is given back
            let start = self.range.start.next_multiple_of(page).min(self.range.end);
            // SAFETY: the mapping is of a file, private and never written: its pages come back as they were.
            let given = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, self.range.end - start)
            };
            given.ok();
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(data: Vec<u8>) -> Self {
        let (range, kept) = (0..data.len(), Kept::of(data.len()));
        Self { backing: Arc::new(Backing::Heap { data, _kept: kept }), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.backing {
            Backing::Map(map) => map,
            Backing::Heap { data, .. } => data,
        };
        all.get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({:#x}..{:#x})", self.range.start, self.range.end)
    }
}

// SAFETY: the backing is behind an Arc and is never changed, so moving a `Bytes` does not move what it points to.
unsafe impl gimli::StableDeref for Bytes {}
// SAFETY: a clone shares the same backing and the same range.
unsafe impl gimli::CloneStableDeref for Bytes {}

/// Where the bytes of an ELF file are.
#[derive(Debug)]
pub(super) enum Content {
    /// An open file, of which parts are copied as they are needed: what its owner does to it afterwards
    /// changes nothing under a reader.
    File { file: File, size: u64, parts: Mutex<Parts> },
    /// All of it is in memory, or mapped.
    Whole(Bytes),
}

/// The parts of a file that were read, by offset and size.
#[derive(Debug, Default)]
pub(super) struct Parts {
    known: HashMap<(u64, u64), Bytes>,
    held: u64,
}

impl Content {
    pub fn of_file(file: File, size: u64) -> Self {
        Self::File { file, size, parts: Mutex::default() }
    }

    /// Whether this is a mapped file, which only the confined child has.
    pub fn is_confined(&self) -> bool {
        matches!(self, Self::Whole(all) if matches!(&*all.backing, Backing::Map(_)))
    }

    /// Bytes of the whole file.
    pub fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Whole(all) => all.len() as u64,
        }
    }

    /// Bytes that are kept in memory for it.
    pub fn held(&self) -> u64 {
        match self {
            Self::File { parts, .. } => parts.lock().unwrap_or_else(PoisonError::into_inner).held,
            Self::Whole(all) => all.len() as u64,
        }
    }

    /// A part, read once and kept; `None` where the file has not so many bytes or would take too much memory.
    pub fn part(&self, offset: u64, size: u64) -> Option<Bytes> {
        let Self::File { parts, .. } = self else { return self.once(offset, size) };
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parts.known.get(&(offset, size)) {
            return Some(known.clone());
        }
        if parts.held.saturating_add(size) > limits::FILE_BYTES || !kept::has_room(size) {
            return None;
        }
        let read = self.once(offset, size)?;
        parts.held += size;
        parts.known.insert((offset, size), read.clone());
        Some(read)
    }

    /// As [`Content::part`], and not kept.
    pub fn once(&self, offset: u64, size: u64) -> Option<Bytes> {
        match self {
            Self::Whole(all) => all.part(offset, size),
            Self::File { file, size: all, .. } => {
                if offset.checked_add(size)? > *all || size > limits::FILE_BYTES {
                    return None;
                }
                let mut data = vec![0; usize::try_from(size).ok()?];
                file.read_exact_at(&mut data, offset).ok()?;
                Some(Bytes::from(data))
            }
        }
    }

    /// Read a part in pieces of `step` bytes, each with the `overlap` bytes after it and its offset in the part.
    /// Ends early where the file was cut off.
    pub fn scan(
        &self,
        part: Range<u64>,
        step: u64,
        overlap: u64,
        mut see: impl FnMut(u64, &[u8]),
    ) -> Option<()> {
        let mut at = part.start;
        while at < part.end {
            let end = part.end.min(at.saturating_add(step + overlap));
            let piece = self.once(at, end - at)?;
            see(at - part.start, &piece);
            piece.release();
            at = at.saturating_add(step);
        }
        Some(())
    }
}
