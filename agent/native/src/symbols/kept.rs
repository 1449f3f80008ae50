//! How many bytes of foreign files this process keeps in memory, for all observed processes together.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::limits;

static KEPT: AtomicU64 = AtomicU64::new(0);

/// So many bytes, counted until this is dropped.
#[derive(Debug)]
pub struct Kept(u64);

impl Kept {
    /// Count these bytes.
    pub fn of(bytes: usize) -> Self {
        let bytes = bytes as u64;
        KEPT.fetch_add(bytes, Relaxed);
        Self(bytes)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        KEPT.fetch_sub(self.0, Relaxed);
    }
}

/// Whether so many more bytes may be kept.
pub fn has_room(bytes: u64) -> bool {
    KEPT.load(Relaxed).saturating_add(bytes) <= limits::ALL_BYTES
}

/// Why another file would not be read, if so. It is refused before it could only be read in part.
pub fn problem() -> Option<String> {
    (!has_room(limits::FILE_BYTES))
        .then(|| format!("not read: the files of all processes exceed {} bytes of memory", limits::ALL_BYTES))
}
