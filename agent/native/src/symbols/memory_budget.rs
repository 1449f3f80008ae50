//! Counts the bytes of untrusted files that this process keeps in memory, for all observed processes together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::limits;

static TOTAL: AtomicU64 = AtomicU64::new(0);

/// A number of bytes that is part of the total until this is dropped.
#[derive(Debug)]
pub struct CountedBytes(u64);

impl CountedBytes {
    /// Add this many bytes to the total.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes as u64;
        TOTAL.fetch_add(bytes, Relaxed);
        Self(bytes)
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        TOTAL.fetch_sub(self.0, Relaxed);
    }
}

/// Return true if this many more bytes may be kept.
pub fn has_room(bytes: u64) -> bool {
    TOTAL.load(Relaxed).saturating_add(bytes) <= limits::ALL_BYTES
}

/// Return why no other file may be read, or `None`. A file is refused if there is no room for the largest one,
/// so that no file is read only in part.
pub fn problem() -> Option<String> {
    (!has_room(limits::FILE_BYTES))
        .then(|| format!("not read: the files of all processes exceed {} bytes of memory", limits::ALL_BYTES))
}
