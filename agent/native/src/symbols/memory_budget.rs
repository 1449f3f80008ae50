//! Counts the bytes of untrusted files that are held in memory, for all observed processes together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::limits;

static TOTAL: AtomicU64 = AtomicU64::new(0);

/// A number of bytes that counts toward the total until this is dropped.
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

/// Return true if this many additional bytes may be held.
pub fn has_room(bytes: u64) -> bool {
    TOTAL.load(Relaxed).saturating_add(bytes) <= limits::ALL_BYTES
}

/// Return the reason why no further file may be read, or `None`. A file is rejected unless there is room for
/// the largest possible one, so that no file is read partially.
pub fn problem() -> Option<String> {
    (!has_room(limits::FILE_BYTES))
        .then(|| format!("not read: the files of all processes exceed {} bytes of memory", limits::ALL_BYTES))
}
