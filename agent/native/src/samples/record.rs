//! Parses the records defined in probes/include/sample.h, probes/profile/offcpu.bpf.c and probes/profile/statements.h.

use crate::arch::NATIVE;
use crate::snapshot::Registers;

/// Offset of the stack in `struct sample`, after the header, 64 kernel addresses and 64 replaced return
/// addresses.
const STACK_AT: usize = RETURNS_AT + 64 * 16;
const RETURNS_AT: usize = KERNEL_AT + 64 * 8;
const KERNEL_AT: usize = 96;

/// Values of `enum kind` in offcpu.bpf.c. Smaller values are defined by the program that uses the ring.
const WAIT_BEGINS: u32 = 256;
const WAIT_ENDS: u32 = 257;
const THREAD_ENDS: u32 = 258;
/// Values of `enum statement_kind` in statements.h.
const STATEMENT_BEGINS: u32 = 259;
const STATEMENT_ENDS: u32 = 260;
const STATEMENT_TEXT: u32 = 261;

/// A captured stack. Its bytes are still in the ring.
#[derive(Debug)]
pub struct Capture<'ring> {
    /// The thread id.
    pub tid: u32,
    /// The kind that the sender assigned.
    pub kind: u32,
    /// The weight that the sender assigned.
    pub weight: u64,
    /// The user registers.
    pub registers: Registers,
    /// The number of the system call that the thread was in, or -1.
    pub syscall: i32,
    /// The first argument of that call.
    pub arg0: u64,
    /// The thread name.
    pub comm: String,
    /// The stack bytes from the stack pointer upward.
    pub stack: &'ring [u8],
    /// The kernel's return addresses, innermost first.
    pub kernel: Vec<u64>,
    /// The return addresses that return probes replaced, as (address of the slot, original value).
    pub returns: Vec<(u64, u64)>,
}

/// The end of a wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitEnd {
    /// The thread's number of context switches when the wait began, which identifies the wait.
    pub switches: u64,
    /// The times for which the thread was blocked and runnable.
    pub ns: WaitTime,
    /// One wait in `every` was captured, including this one; 0 if this wait's stack was not captured.
    pub every: u64,
}

/// Off-CPU time in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitTime {
    /// Blocked: waiting for something other than a CPU.
    pub blocked: u64,
    /// Runnable: waiting for a CPU.
    pub runnable: u64,
}

/// The state of a thread: `enum mode` of offcpu.bpf.c.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Running on a CPU.
    Running,
    /// Blocked: waiting for something other than a CPU.
    Blocked,
    /// Runnable: waiting for a CPU.
    Runnable,
}

/// A thread's times in each state, from `struct thread` of offcpu.bpf.c. Times are in ns of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Account {
    /// The current state.
    pub mode: Mode,
    /// The time up to which the durations below are complete.
    pub since: u64,
    /// Time on a CPU.
    pub running: u64,
    /// Off-CPU time, including the current wait.
    pub waited: WaitTime,
    /// Duration of the current wait so far.
    pub wait: WaitTime,
    /// The thread's number of context switches when the current wait began, which identifies the wait.
    pub switches: u64,
}

impl Account {
    /// Number of 64-bit words in the struct.
    pub const WORDS: usize = 19;

    /// Parse the words of a value in the `threads` map; return None if the thread's state is unknown.
    pub fn of(words: &[u64]) -> Option<Self> {
        let [mode, since, running, blocked, runnable, wait_blocked, wait_runnable, switches, ..] = *words
        else {
            return None;
        };
        let mode = match mode {
            1 => Mode::Running,
            2 => Mode::Blocked,
            3 => Mode::Runnable,
            _ => return None,
        };
        let waited = WaitTime { blocked, runnable };
        let wait = WaitTime { blocked: wait_blocked, runnable: wait_runnable };
        Some(Self { mode, since, running, waited, wait, switches })
    }

    /// Return this account extended to `end`, assuming that the thread's state did not change.
    #[must_use]
    pub fn until(mut self, end: u64) -> Self {
        let rest = end.saturating_sub(self.since);
        match self.mode {
            Mode::Running => self.running += rest,
            Mode::Blocked => {
                self.waited.blocked += rest;
                self.wait.blocked += rest;
            }
            Mode::Runnable => {
                self.waited.runnable += rest;
                self.wait.runnable += rest;
            }
        }
        self.since = self.since.max(end);
        self
    }
}

/// The start of a sampled statement. Its text is still in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementBegin<'ring> {
    /// The command, a value of `enum_server_command`.
    pub command: u32,
    /// The connection id and statement id of a prepared statement; None if unknown.
    pub prepared: Option<(u32, u32)>,
    /// The text, which may be truncated; empty if it is unknown.
    pub text: &'ring [u8],
}

/// The end of a sampled statement. Times are in ns of CLOCK_MONOTONIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatementEnd {
    /// Start time.
    pub began: u64,
    /// End time.
    pub ended: u64,
    /// Its off-CPU time.
    pub waited: WaitTime,
}

/// A record from the ring buffer.
#[derive(Debug)]
pub enum Record<'ring> {
    /// A stack that is counted immediately.
    Sample(Capture<'ring>),
    /// The stack of a wait that has just begun; `weight` identifies the wait.
    WaitBegins(Capture<'ring>),
    /// The end of a wait: thread id and duration.
    WaitEnds(u32, WaitEnd),
    /// The exit of a thread: its id, time of exit, `Account` and name.
    ThreadEnds(u32, u64, Account, String),
    /// The start of a thread's sampled statement.
    StatementBegins(u32, StatementBegin<'ring>),
    /// The text of the prepared statement that a thread is executing.
    StatementText(u32, &'ring [u8]),
    /// The end of a thread's sampled statement.
    StatementEnds(u32, StatementEnd),
}

/// Parse a record; None if it is truncated or malformed.
pub fn parse(bytes: &[u8]) -> Option<Record<'_>> {
    let tid = word(bytes, 0)?;
    match word(bytes, 4)? {
        WAIT_ENDS => {
            let ns = WaitTime { blocked: long(bytes, 16)?, runnable: long(bytes, 24)? };
            Some(Record::WaitEnds(tid, WaitEnd { switches: long(bytes, 8)?, ns, every: long(bytes, 32)? }))
        }
        THREAD_ENDS => {
            let words = longs(bytes.get(16..16 + 8 * Account::WORDS)?);
            let comm = text(bytes.get(16 + 8 * Account::WORDS..)?.get(..16)?);
            Some(Record::ThreadEnds(tid, long(bytes, 8)?, Account::of(&words)?, comm))
        }
        STATEMENT_BEGINS => {
            let connection = word(bytes, 8)?;
            let prepared = (connection != 0).then_some((connection, word(bytes, 12)?));
            let begin = StatementBegin { command: word(bytes, 16)?, prepared, text: statement_text(bytes)? };
            Some(Record::StatementBegins(tid, begin))
        }
        STATEMENT_TEXT => Some(Record::StatementText(tid, statement_text(bytes)?)),
        STATEMENT_ENDS => {
            let waited = WaitTime { blocked: long(bytes, 24)?, runnable: long(bytes, 32)? };
            let end = StatementEnd { began: long(bytes, 8)?, ended: long(bytes, 16)?, waited };
            Some(Record::StatementEnds(tid, end))
        }
        WAIT_BEGINS => capture(bytes).map(Record::WaitBegins),
        _ => capture(bytes).map(Record::Sample),
    }
}

/// Return the text at the end of a `struct statement_begin`.
fn statement_text(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(24..24_usize.checked_add(word(bytes, 20)? as usize)?)
}

fn capture(bytes: &[u8]) -> Option<Capture<'_>> {
    let part = |at: usize, length: usize| bytes.get(at..at.checked_add(length)?);
    let returns = longs(part(RETURNS_AT, word(bytes, 72)? as usize)?);
    let registers = Registers {
        ip: long(bytes, 16)?,
        sp: long(bytes, 24)?,
        bp: Some(long(bytes, 32)?),
        lr: NATIVE.link_register(long(bytes, 40)?),
    };
    Some(Capture {
        tid: word(bytes, 0)?,
        kind: word(bytes, 4)?,
        weight: long(bytes, 8)?,
        registers,
        syscall: long(bytes, 48)? as i32,
        arg0: long(bytes, 56)?,
        stack: part(STACK_AT, word(bytes, 64)? as usize)?,
        kernel: longs(part(KERNEL_AT, word(bytes, 68)? as usize)?),
        returns: returns.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
        comm: text(part(80, 16)?),
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn longs(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: u32, stack: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        for value in [5_u64, 0x1000, 0x2000, 0x3000, 0x4000, u64::MAX, 9] {
            bytes.extend(value.to_le_bytes());
        }
        for value in [stack.len() as u32, 8, 16, 0] {
            bytes.extend(value.to_le_bytes());
        }
        bytes.extend(b"mysqld\0\0\0\0\0\0\0\0\0\0");
        bytes.resize(RETURNS_AT, 1);
        bytes.resize(STACK_AT, 2);
        bytes.extend(stack);
        bytes
    }

    #[test]
    fn parses_a_stack() {
        let bytes = sample(3, &[1, 2, 3]);
        let Some(Record::Sample(capture)) = parse(&bytes) else { panic!("no sample") };
        assert_eq!((capture.tid, capture.kind, capture.weight, capture.syscall), (7, 3, 5, -1));
        let lr = NATIVE.link_register(0x4000);
        assert_eq!(capture.registers, Registers { ip: 0x1000, sp: 0x2000, bp: Some(0x3000), lr });
        assert_eq!((capture.comm.as_str(), capture.stack), ("mysqld", &[1, 2, 3][..]));
        assert_eq!((capture.kernel.len(), capture.returns.len()), (1, 1));
    }

    #[test]
    fn truncated_and_malformed_records_do_not_panic() {
        let whole = sample(WAIT_BEGINS, &[0; 64]);
        for length in 0..whole.len() {
            assert!(parse(&whole[..length]).is_none());
        }
        for place in 64..80 {
            let mut damaged = whole.clone();
            damaged[place] = 0xff;
            let _ = parse(&damaged);
        }
    }

    #[test]
    fn adds_the_time_since_the_last_event() {
        let words = [2, 100, 7, 5, 3, 5, 0, 41, 0, 1, 0, 0, 0, 0];
        let account = Account::of(&words).expect("a known mode");
        let waited = |blocked, runnable| WaitTime { blocked, runnable };
        assert_eq!(account.until(90), account);
        let later = account.until(120);
        assert_eq!((later.running, later.waited, later.wait), (7, waited(25, 3), waited(25, 0)));
        let running = Account { mode: Mode::Running, ..account }.until(120);
        assert_eq!((running.running, running.waited), (27, waited(5, 3)));
        assert_eq!(Account::of(&[4; Account::WORDS]), None);
    }

    #[test]
    fn parses_the_end_of_a_wait() {
        let mut bytes = Vec::new();
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(WAIT_ENDS.to_le_bytes());
        for value in [40_u64, 10, 20, 1] {
            bytes.extend(value.to_le_bytes());
        }
        let Some(Record::WaitEnds(7, end)) = parse(&bytes) else { panic!("no end") };
        assert_eq!(end, WaitEnd { switches: 40, ns: WaitTime { blocked: 10, runnable: 20 }, every: 1 });
    }

    #[test]
    fn parses_the_boundaries_of_a_statement() {
        let mut begin = Vec::new();
        begin.extend(7_u32.to_le_bytes());
        begin.extend(STATEMENT_BEGINS.to_le_bytes());
        for value in [0_u32, 0, 3, 8] {
            begin.extend(value.to_le_bytes());
        }
        begin.extend(b"SELECT 1 and bytes of an earlier record");
        let Some(Record::StatementBegins(7, found)) = parse(&begin) else { panic!("no begin") };
        assert_eq!(found, StatementBegin { command: 3, prepared: None, text: b"SELECT 1" });
        assert!(parse(&begin[..31]).is_none());
        begin[8..16].copy_from_slice(&[9, 0, 0, 0, 2, 0, 0, 0]);
        let Some(Record::StatementBegins(7, found)) = parse(&begin) else { panic!("no begin") };
        assert_eq!(found.prepared, Some((9, 2)));
        begin[4..8].copy_from_slice(&STATEMENT_TEXT.to_le_bytes());
        let Some(Record::StatementText(7, b"SELECT 1")) = parse(&begin) else { panic!("no text") };
        begin[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse(&begin).is_none());

        let mut end = Vec::new();
        end.extend(7_u32.to_le_bytes());
        end.extend(STATEMENT_ENDS.to_le_bytes());
        for value in [100_u64, 160, 40, 5] {
            end.extend(value.to_le_bytes());
        }
        let Some(Record::StatementEnds(7, found)) = parse(&end) else { panic!("no end") };
        let waited = WaitTime { blocked: 40, runnable: 5 };
        assert_eq!(found, StatementEnd { began: 100, ended: 160, waited });
        assert!(parse(&end[..39]).is_none());
    }
}
