//! Parses the records that probes/snapshot/snapshot.bpf.c writes.

use std::sync::Arc;

use super::{Bytes, Consistency, RawThread, Registers};
use crate::arch::NATIVE;

/// Size of `struct record_header`.
const HEADER_BYTES: usize = 128;

/// Values of `enum copy` in snapshot.bpf.c.
const COPY_UNCHANGED: u32 = 1;
const COPY_SHALLOW: u32 = 2;
const COPY_NONE: u32 = 3;

/// Parse all records in `buffer`; the stacks of the threads refer to it. Also return the number of threads
/// that were only counted. A truncated record ends the list.
pub(super) fn parse_all(buffer: &Arc<Vec<u8>>, filled: usize) -> (Vec<RawThread>, usize) {
    let (mut threads, mut counted) = (Vec::new(), 0);
    let mut at = 0;
    while let Some((thread, end)) = parse(buffer, at, filled) {
        match thread {
            Some(thread) => threads.push(thread),
            None => counted += 1,
        }
        at = end;
    }
    (threads, counted)
}

/// Parse the record at `at`. Return its thread and the offset of the next record. The thread is None if the
/// BPF program only counted it.
fn parse(buffer: &Arc<Vec<u8>>, at: usize, filled: usize) -> Option<(Option<RawThread>, usize)> {
    let header = buffer.get(at..filled)?.get(..HEADER_BYTES)?;
    let word = |offset: usize| u32::from_le_bytes(header[offset..offset + 4].try_into().expect("4 bytes"));
    let long = |offset: usize| u64::from_le_bytes(header[offset..offset + 8].try_into().expect("8 bytes"));
    if word(112) == COPY_NONE {
        return Some((None, at + HEADER_BYTES));
    }
    let stack = at + HEADER_BYTES..at + HEADER_BYTES + word(20) as usize;
    let kernel = stack.end..stack.end + word(24) as usize;
    let returns = kernel.end..kernel.end + word(28) as usize;
    let kernel_bytes = buffer.get(..filled)?.get(kernel.clone())?;
    let return_bytes = buffer.get(..filled)?.get(returns.clone())?;
    let switches = long(32);
    let consistency = if word(12) != 0 || word(16) != 0 {
        Consistency::Running
    } else if switches != long(40) {
        Consistency::Torn
    } else {
        Consistency::Consistent
    };
    let thread = RawThread {
        tid: word(0),
        ns_tid: word(4),
        state: state_letter(word(8), consistency),
        comm: comm(&header[96..112]),
        consistency,
        switches,
        ran: long(120),
        registers: Registers {
            ip: long(48),
            sp: long(56),
            bp: Some(long(64)),
            lr: NATIVE.link_register(long(72)),
        },
        syscall: long(80) as i32,
        arg0: long(88),
        stack: Bytes::new(Arc::clone(buffer), stack),
        kernel: words(kernel_bytes),
        returns: words(return_bytes).chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
        unchanged: word(112) == COPY_UNCHANGED,
        shallow: word(112) == COPY_SHALLOW,
        stack_wanted: word(116) as usize,
    };
    Some((Some(thread), returns.end))
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn comm(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Convert `task_struct::__state` (include/linux/sched.h) to the letter of /proc/PID/stat. The low bits have
/// been the same since 2.6; TASK_IDLE is an uninterruptible sleep with TASK_NOLOAD.
fn state_letter(state: u32, consistency: Consistency) -> char {
    const NOLOAD: u32 = 0x400;
    match state {
        _ if consistency == Consistency::Running => 'R',
        state if state & 0x4 != 0 => 'T',
        state if state & 0x8 != 0 => 't',
        state if state & 0x2 != 0 => {
            if state & NOLOAD != 0 {
                'I'
            } else {
                'D'
            }
        }
        state if state & 0x1 != 0 => 'S',
        _ => 'R',
    }
}
