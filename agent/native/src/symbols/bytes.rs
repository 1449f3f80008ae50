//! Pieces of a file (or of memory) that stay valid for as long as somebody holds them.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use memmap2::{Mmap, UncheckedAdvice};

/// What the bytes are backed by.
enum Backing {
    Map(Mmap),
    Heap(Vec<u8>),
}

/// A range of an immutable file mapping or buffer; a clone costs one reference count.
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

    /// Gives the pages of a mapped file back to the kernel, which reads them again when they are asked for: who
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

    /// All of it in pieces of `step` bytes, each with the `overlap` bytes after it and its offset; what was seen
    /// of a mapped file is released.
    pub fn scan(&self, step: usize, overlap: usize, mut see: impl FnMut(usize, &[u8])) {
        for start in (0..self.len()).step_by(step) {
            let piece = &self[start..self.len().min(start.saturating_add(step + overlap))];
            see(start, piece);
            self.part(start as u64, step.min(self.len() - start) as u64).iter().for_each(Self::release);
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(data: Vec<u8>) -> Self {
        let range = 0..data.len();
        Self { backing: Arc::new(Backing::Heap(data)), range }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.backing {
            Backing::Map(map) => map,
            Backing::Heap(data) => data,
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
