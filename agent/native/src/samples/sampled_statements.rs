//! Collects the sampled statements of a latency profile: their digests, and their times by place.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::Place;
use super::record::{StatementBegin, StatementEnd, WaitTime};
use super::waits::Waits;
use crate::digest::{Context, Normalized};
use crate::statements::Digests;

/// The id by which MariaDB's clients refer to the last statement that they prepared (LAST_STMT_ID in
/// sql_prepare.h).
const LAST_PREPARED: u32 = u32::MAX;
/// Maximum number of prepared statements whose digests are stored.
const MAX_PREPARED: usize = 100_000;
/// Maximum number of completed statements that are buffered until they are taken. Beyond that, statements are
/// dropped and counted.
const MAX_COMPLETE: usize = 100_000;

/// A statement that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Statement {
    /// The thread id.
    pub tid: u32,
    /// The command, a value of `enum_server_command`.
    pub command: u32,
    /// The digest of its text; None if the text is unknown.
    pub digest: Option<Arc<Normalized>>,
    /// The connection id and statement id of a prepared statement; None if unknown.
    pub prepared: Option<(u32, u32)>,
    /// Its start and end times, and its off-CPU time.
    pub end: StatementEnd,
    /// The off-CPU time by place. The times add up to `end.waited`.
    pub waits: Vec<(Option<Place>, WaitTime)>,
}

/// A statement that has begun.
struct Open {
    command: u32,
    digest: Option<Arc<Normalized>>,
    prepared: Option<(u32, u32)>,
}

/// Collects statements. The texts are normalized as soon as they are read.
pub struct SampledStatements {
    digests: Digests,
    open: FxHashMap<u32, Open>,
    /// The digests of prepared statements; None for a statement whose texts had different digests.
    prepared: FxHashMap<(u32, u32), Option<Arc<Normalized>>>,
    complete: Vec<Statement>,
    /// Number of statements that were dropped.
    pub dropped: u64,
}

impl SampledStatements {
    /// Create an empty collection; see [`crate::digest::normalize_both`] for `max_chars`.
    pub fn new(context: Context, max_chars: usize) -> Self {
        let digests = Digests::new(context, max_chars);
        let (open, prepared) = (FxHashMap::default(), FxHashMap::default());
        Self { digests, open, prepared, complete: Vec::new(), dropped: 0 }
    }

    /// Record the start of a statement.
    pub fn begins(&mut self, tid: u32, begin: StatementBegin<'_>, waits: &mut Waits) {
        waits.statement_begins(tid);
        let digest = self.digest(begin.text);
        let prepared = begin.prepared.filter(|(_, number)| *number != LAST_PREPARED);
        self.open.insert(tid, Open { command: begin.command, digest, prepared });
    }

    fn digest(&mut self, text: &[u8]) -> Option<Arc<Normalized>> {
        let text = trimmed(text);
        (!text.is_empty()).then(|| self.digests.of(text))
    }

    /// Record the text of the prepared statement that a thread is executing.
    pub fn text(&mut self, tid: u32, text: &[u8]) {
        let Some(digest) = self.digest(text) else { return };
        let Some(open) = self.open.get_mut(&tid) else { return };
        open.digest = Some(Arc::clone(&digest));
        if let Some(key) = open.prepared
            && (self.prepared.len() < MAX_PREPARED || self.prepared.contains_key(&key))
        {
            let known = self.prepared.entry(key).or_insert_with(|| Some(Arc::clone(&digest)));
            if known.as_ref().is_some_and(|known| known.newest != digest.newest) {
                *known = None;
            }
        }
    }

    /// Return the digest of a prepared statement; None if no text of it was captured, or if its texts had
    /// different digests.
    pub fn prepared(&self, key: (u32, u32)) -> Option<Arc<Normalized>> {
        self.prepared.get(&key).cloned().flatten()
    }

    /// Record the end of a statement.
    pub fn ends(&mut self, tid: u32, end: StatementEnd, waits: &mut Waits) {
        let by_place = waits.statement_ends(tid, end.waited);
        let Some(Open { command, digest, prepared }) = self.open.remove(&tid) else { return };
        if self.complete.len() < MAX_COMPLETE {
            self.complete.push(Statement { tid, command, digest, prepared, end, waits: by_place });
        } else {
            self.dropped += 1;
        }
    }

    /// Forget the statement of a thread that has exited.
    pub fn thread_ends(&mut self, tid: u32) {
        self.open.remove(&tid);
    }

    /// Return the number of statements that have begun but not ended.
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// Return the statements that have ended since the last call.
    pub fn take(&mut self) -> Vec<Statement> {
        std::mem::take(&mut self.complete)
    }
}

/// Trim the text as the server does (`alloc_query` in sql_parse.cc): white space at the start; white space,
/// semicolons and NUL bytes at the end.
fn trimmed(text: &[u8]) -> &[u8] {
    let is_junk = |byte: &u8| *byte == b';' || *byte == 0 || byte.is_ascii_whitespace();
    let text = text.trim_ascii_start();
    let end = text.iter().rposition(|byte| !is_junk(byte)).map_or(0, |last| last + 1);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Words;
    use crate::samples::record::WaitEnd;
    use crate::snapshot::Trust;

    const MS: u64 = 1_000_000;

    fn place(stack: u32) -> Place {
        Place { stack, trust: Trust::Exact, syscall: -1, file: -1 }
    }

    fn blocked(ms: u64) -> WaitTime {
        WaitTime { blocked: ms * MS, runnable: 0 }
    }

    fn wait(waits: &mut Waits, switches: u64, stack: u32, ms: u64, every: u64) {
        waits.begins(7, place(stack), switches);
        waits.ends(7, WaitEnd { switches, ns: blocked(ms), every });
    }

    fn statements() -> SampledStatements {
        SampledStatements::new(Context { version: 80_031, words: Words::Mysql8, certain: false }, 1_024)
    }

    fn end(ms: u64) -> StatementEnd {
        StatementEnd { began: 10, ended: 10 + 200 * MS, waited: blocked(ms) }
    }

    #[test]
    fn a_statement_has_the_waits_since_its_begin() {
        let (mut found, mut waits) = (statements(), Waits::default());
        wait(&mut waits, 1, 9, 90, 1);
        found.begins(7, StatementBegin { command: 3, prepared: None, text: b"  SELECT 1 ; \n" }, &mut waits);
        wait(&mut waits, 2, 1, 50, 1);
        wait(&mut waits, 3, 2, 4, 2);
        wait(&mut waits, 4, 3, 2, 2);
        found.ends(7, end(62), &mut waits);
        wait(&mut waits, 5, 9, 90, 1);
        let [one] = &found.take()[..] else { panic!("no statement") };
        assert_eq!(one.digest.as_ref().map(|digest| digest.text.as_str()), Some("SELECT ?"));
        let mut times = one.waits.clone();
        times.sort_by_key(|(place, _)| place.map(|place| place.stack));
        let expected = [(1, 50), (2, 8), (3, 4)].map(|(stack, ms)| (Some(place(stack)), blocked(ms)));
        assert_eq!(times, expected);
        assert!(found.take().is_empty());
    }

    #[test]
    fn the_text_of_one_execution_is_that_of_all_executions() {
        let (mut found, mut waits) = (statements(), Waits::default());
        let mut execute = |number: u32, text: &[u8]| {
            let prepared = Some((9, number));
            found.begins(7, StatementBegin { command: 23, prepared, text: b"" }, &mut waits);
            found.text(7, text);
            found.ends(7, end(0), &mut waits);
        };
        execute(1, b"");
        execute(1, b"SELECT 1");
        execute(1, b"SELECT 2");
        execute(2, b"SELECT 1");
        execute(2, b"DELETE FROM t");
        execute(LAST_PREPARED, b"DELETE FROM t");
        let digests: Vec<_> =
            found.take().into_iter().map(|one| one.digest.map(|one| one.text.clone())).collect();
        assert_eq!(digests[..2], [None, Some("SELECT ?".to_owned())]);
        let known = |number| found.prepared((9, number)).map(|one| one.text.clone());
        assert_eq!(known(1).as_deref(), Some("SELECT ?"));
        assert_eq!((known(2), known(LAST_PREPARED)), (None, None));
    }

    #[test]
    fn time_without_a_stack_is_not_attributed() {
        let (mut found, mut waits) = (statements(), Waits::default());
        found.begins(7, StatementBegin { command: 23, prepared: None, text: b"" }, &mut waits);
        found.ends(7, end(30), &mut waits);
        let [one] = &found.take()[..] else { panic!("no statement") };
        assert_eq!((one.command, &one.digest), (23, &None));
        assert_eq!(one.waits, [(None, blocked(30))]);
    }

    #[test]
    fn an_end_without_a_begin_is_ignored() {
        let (mut found, mut waits) = (statements(), Waits::default());
        found.ends(7, end(30), &mut waits);
        found.begins(7, StatementBegin { command: 3, prepared: None, text: b"SELECT 1" }, &mut waits);
        assert_eq!(found.open(), 1);
        found.thread_ends(7);
        assert_eq!((found.open(), found.take().len()), (0, 0));
    }

    #[test]
    fn texts_are_trimmed_like_by_the_server() {
        assert_eq!(trimmed(b" \n SELECT 1; ; "), b"SELECT 1");
        assert_eq!(trimmed(b"SELECT ';'\0"), b"SELECT ';'");
        assert_eq!(trimmed(b" ; "), b"");
        assert_eq!(trimmed(b""), b"");
    }
}
