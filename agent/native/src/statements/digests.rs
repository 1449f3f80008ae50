//! Caches the digests of statements, so that each distinct text is normalized once.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::digest::{Context, Normalized, normalize_both};

/// Maximum number of cached digests. With texts of 250 characters, they take 0.3 MB; a hostile server's texts may
/// take 8 KB each.
const MAX: usize = 500;

/// The digests of one server's statements. A full cache is cleared.
///
/// It is keyed by hashes of the texts, with a random hash key, because the texts contain literals.
pub struct Digests {
    context: Context,
    max_chars: usize,
    hashers: [RandomState; 2],
    known: FxHashMap<[u64; 2], Arc<Normalized>>,
}

impl Digests {
    /// Create an empty cache. A digest's text has at most `max_chars` characters.
    pub fn new(context: Context, max_chars: usize) -> Self {
        let hashers = [RandomState::new(), RandomState::new()];
        Self { context, max_chars, hashers, known: FxHashMap::default() }
    }

    /// Return the digest of a text.
    pub fn of(&mut self, text: &[u8]) -> Arc<Normalized> {
        let key = self.hashers.each_ref().map(|hasher| hasher.hash_one(text));
        if self.known.len() >= MAX && !self.known.contains_key(&key) {
            self.known.clear();
        }
        let (context, max_chars) = (self.context, self.max_chars);
        let normalize = || Arc::new(normalize_both(text, context, max_chars));
        Arc::clone(self.known.entry(key).or_insert_with(normalize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Words;

    #[test]
    fn a_text_is_normalized_once_and_the_cache_is_bounded() {
        let context = Context { version: 80_031, words: Words::Mysql8, certain: false };
        let mut digests = Digests::new(context, 1_024);
        let first = digests.of(b"SELECT 'secret'");
        assert_eq!((first.text.as_str(), first.newest.as_str()), ("SELECT ?", "SELECT ?"));
        assert!(Arc::ptr_eq(&first, &digests.of(b"SELECT 'secret'")));
        for number in 0..2 * MAX {
            digests.of(format!("SELECT {number}").as_bytes());
            assert!(digests.known.len() <= MAX);
        }
    }
}
