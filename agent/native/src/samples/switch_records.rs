//! Parses the records of `switch_events`.

use perf_event_open_sys::bindings;

use super::event_set::Owners;
use super::events::{parse_stack, stack_capture};
use super::record::Capture;
use super::switches::{Event, Timed};
use crate::perf_event::long;

/// The length of the `sample_id` at the end of each record: pid and tid, time, and the event's id.
const ID_BYTES: usize = 24;

/// Parse a sample of the process: pid and tid, time, the event's id, and the stack.
pub(super) fn capture(pid: u32, kernel: bool, body: &[u8]) -> Option<(u64, Capture<'_>)> {
    let ids = long(body, 0)?;
    if ids as u32 != pid {
        return None;
    }
    let (registers, stack, kernel) = parse_stack(body.get(ID_BYTES..)?, kernel)?;
    Some((long(body, 8)?, stack_capture((ids >> 32) as u32, registers, stack, kernel)))
}

fn is_switch(kind: u32) -> bool {
    matches!(kind, bindings::PERF_RECORD_SWITCH | bindings::PERF_RECORD_SWITCH_CPU_WIDE)
}

/// Return true if the record shows that a thread leaves its CPU. The idle task does not count.
pub(super) fn leaves(kind: u32, flags: u16, body: &[u8]) -> bool {
    let ids = body.len().checked_sub(ID_BYTES).and_then(|at| long(body, at));
    is_switch(kind) && u32::from(flags) & bindings::PERF_RECORD_MISC_SWITCH_OUT != 0 && ids != Some(0)
}

/// Parse a record of a switch, or of the start or exit of a thread of the process.
pub(super) fn parse(pid: u32, owners: &Owners, kind: u32, flags: u16, body: &[u8]) -> Option<Timed> {
    let flag = |bit: u32| u32::from(flags) & bit != 0;
    let id = body.get(body.len().checked_sub(ID_BYTES)?..)?;
    let at = long(id, 8)?;
    if is_switch(kind) {
        let ids = long(id, 0)?;
        let tid = (ids >> 32) as u32;
        if ids as u32 != pid || owners.is_duplicate(tid, long(id, 16)?) {
            return None;
        }
        let event = if flag(bindings::PERF_RECORD_MISC_SWITCH_OUT) {
            Event::Leaves { preempted: flag(bindings::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT) }
        } else {
            Event::Arrives
        };
        return Some(Timed { at, tid, event });
    }
    // The pids and the tids of the thread and its parent.
    let (pids, tids) = (long(body, 0)?, long(body, 8)?);
    let event = match kind {
        bindings::PERF_RECORD_FORK => Event::Starts((tids >> 32) as u32),
        bindings::PERF_RECORD_EXIT => Event::Exits,
        _ => return None,
    };
    (pids as u32 == pid).then_some(Timed { at, tid: tids as u32, event })
}

/// Parse a record of a thread's new name: pid, tid, and the name, padded with zeros.
pub(super) fn new_name(pid: u32, body: &[u8]) -> Option<(u32, String)> {
    let ids = long(body, 0)?;
    let name = body.get(8..body.len().checked_sub(ID_BYTES)?)?;
    let name = name.split(|byte| *byte == 0).next()?;
    (ids as u32 == pid).then(|| ((ids >> 32) as u32, String::from_utf8_lossy(name).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: u16 = bindings::PERF_RECORD_MISC_SWITCH_OUT as u16;
    const PREEMPT: u16 = bindings::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT as u16;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn pair(first: u64, second: u64) -> u64 {
        second << 32 | first
    }

    #[test]
    fn parses_switches_of_the_process() {
        let body = bytes(&[pair(9, 9), pair(7, 8), 1_000, 100]);
        let parsed = |pid, flags| {
            let kind = bindings::PERF_RECORD_SWITCH_CPU_WIDE;
            parse(pid, &Owners::default(), kind, flags, &body).map(|timed| (timed.at, timed.tid, timed.event))
        };
        assert_eq!(parsed(7, 0), Some((1_000, 8, Event::Arrives)));
        assert_eq!(parsed(7, OUT), Some((1_000, 8, Event::Leaves { preempted: false })));
        assert_eq!(parsed(7, OUT | PREEMPT), Some((1_000, 8, Event::Leaves { preempted: true })));
        assert!(leaves(bindings::PERF_RECORD_SWITCH_CPU_WIDE, OUT, &body));
        assert!(!leaves(bindings::PERF_RECORD_SWITCH_CPU_WIDE, 0, &body));
        assert!(!leaves(bindings::PERF_RECORD_SWITCH, OUT, &bytes(&[0, 1_000, 100])), "the idle task");
        assert_eq!(parsed(9, OUT), None, "the other thread has its own record");
    }

    #[test]
    fn parses_the_start_the_exit_and_the_name_of_a_thread() {
        let body = bytes(&[pair(7, 7), pair(8, 6), 999, pair(7, 6), 1_000, 100]);
        let event = |kind| parse(7, &Owners::default(), kind, 0, &body).map(|timed| (timed.tid, timed.event));
        assert_eq!(event(bindings::PERF_RECORD_FORK), Some((8, Event::Starts(6))));
        assert_eq!(event(bindings::PERF_RECORD_EXIT), Some((8, Event::Exits)));
        let name = u64::from_le_bytes(*b"mysqld\0\0");
        let body = bytes(&[pair(7, 8), name, 0, pair(7, 8), 1_000, 100]);
        assert_eq!(new_name(7, &body), Some((8, "mysqld".to_owned())));
        assert_eq!(new_name(6, &body), None);
    }

    #[test]
    fn truncated_records_do_not_panic() {
        let body = bytes(&[pair(7, 8), 1_000, 100, 2, 3, 4, 5, 8, 6, 8]);
        assert!(capture(7, false, &body).is_some());
        for length in 0..body.len() {
            let part = &body[..length];
            assert!(capture(7, false, part).is_none());
            let _ = new_name(7, part);
            for kind in 0..20 {
                let _ = leaves(kind, OUT, part);
                let _ = parse(7, &Owners::default(), kind, OUT, part);
            }
        }
    }
}
