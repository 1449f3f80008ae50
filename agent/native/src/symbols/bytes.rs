//! Reference-counted slices of a file or of memory.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{Mmap, UncheckedAdvice};

use super::limits;
use super::memory_budget::{self, CountedBytes};

/// The storage of the bytes.
enum Backing {
    /// A mapped file. This is used only in the confined child, which may be killed by SIGBUS if the file is
    /// truncated.
    Map(Mmap),
    Heap {
        data: Vec<u8>,
        _counted: CountedBytes,
    },
}

/// A range of an immutable buffer or mapping. A clone only increments a reference count.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    /// Create a reference to a complete mapped file.
    pub(super) fn from_map(map: Mmap) -> Self {
        let range = 0..map.len();
        Self { backing: Arc::new(Backing::Map(map)), range }
    }

    /// Return `size` bytes from `offset`, or `None` if they are out of bounds.
    pub fn part(&self, offset: u64, size: u64) -> Option<Self> {
        let start = self.range.start.checked_add(usize::try_from(offset).ok()?)?;
        let end = start.checked_add(usize::try_from(size).ok()?)?;
        (end <= self.range.end).then(|| Self { backing: Arc::clone(&self.backing), range: start..end })
    }

    /// Release the pages of a mapped file to the kernel, which reads them again when needed. Otherwise a scan
    /// would charge the whole file to this process. This has no effect on a buffer.
    pub fn release(&self) {
        if let Backing::Map(map) = &*self.backing {
            let page = 4096; // on hosts with larger pages, the kernel rejects the call
            let start = self.range.start.next_multiple_of(page).min(self.range.end);
            // SAFETY: the mapping is file-backed, private and never written, so the pages are read from the
            // file again.
            let given = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, self.range.end - start)
            };
            given.ok();
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(data: Vec<u8>) -> Self {
        let (range, counted) = (0..data.len(), CountedBytes::new(data.len()));
        Self { backing: Arc::new(Backing::Heap { data, _counted: counted }), range }
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

// SAFETY: the backing is immutable and behind an Arc, so moving a `Bytes` does not move the bytes that it
// derefs to.
unsafe impl gimli::StableDeref for Bytes {}
// SAFETY: a clone has the same backing and range, so it derefs to the same bytes.
unsafe impl gimli::CloneStableDeref for Bytes {}

/// The content of an ELF file.
#[derive(Debug)]
pub(super) enum Content {
    /// An open file, whose parts are copied when needed. Later changes by the file's owner do not affect
    /// parts that are already in use.
    File { file: File, size: u64, parts: Mutex<Parts> },
    /// The complete content, in memory or mapped.
    Whole(Bytes),
}

/// The cached parts of a file, by offset and size.
#[derive(Debug, Default)]
pub(super) struct Parts {
    known: HashMap<(u64, u64), Bytes>,
    memory_bytes: u64,
}

impl Content {
    pub fn of_file(file: File, size: u64) -> Self {
        Self::File { file, size, parts: Mutex::default() }
    }

    /// Return true for a mapped file, which only the confined child has.
    pub fn is_confined(&self) -> bool {
        matches!(self, Self::Whole(all) if matches!(&*all.backing, Backing::Map(_)))
    }

    /// Return the size of the file in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Whole(all) => all.len() as u64,
        }
    }

    /// Return the number of bytes in memory.
    pub fn memory_bytes(&self) -> u64 {
        match self {
            Self::File { parts, .. } => parts.lock().unwrap_or_else(PoisonError::into_inner).memory_bytes,
            Self::Whole(all) => all.len() as u64,
        }
    }

    /// Return a part of the file, which is read once and cached; `None` if it is out of bounds or the cache
    /// would exceed its limit.
    pub fn part(&self, offset: u64, size: u64) -> Option<Bytes> {
        let Self::File { parts, .. } = self else { return self.read_uncached(offset, size) };
        let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = parts.known.get(&(offset, size)) {
            return Some(known.clone());
        }
        if parts.memory_bytes.saturating_add(size) > limits::FILE_BYTES || !memory_budget::has_room(size) {
            return None;
        }
        let read = self.read_uncached(offset, size)?;
        parts.memory_bytes += size;
        parts.known.insert((offset, size), read.clone());
        Some(read)
    }

    /// Return a part of the file without caching it.
    pub fn read_uncached(&self, offset: u64, size: u64) -> Option<Bytes> {
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

    /// Read a part in pieces of `step` bytes. Call `visit` with the offset of each piece in the part, and with the
    /// piece, extended by the `overlap` bytes that follow it. The scan ends early if the file was truncated.
    pub fn scan(
        &self,
        part: Range<u64>,
        step: u64,
        overlap: u64,
        mut visit: impl FnMut(u64, &[u8]),
    ) -> Option<()> {
        let mut at = part.start;
        while at < part.end {
            let end = part.end.min(at.saturating_add(step + overlap));
            let piece = self.read_uncached(at, end - at)?;
            visit(at - part.start, &piece);
            piece.release();
            at = at.saturating_add(step);
        }
        Some(())
    }
}
