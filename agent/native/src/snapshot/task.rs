//! Reads the threads of a process from /proc/PID/task.

use std::fs;

use super::{Consistency, RawThread, Registers};
use crate::error::{Error, Kind, Result};

/// Task flag of io_uring's workers. The workers are listed as threads of the process, have no user stack, and
/// must not be traced.
const PF_IO_WORKER: u32 = 0x10;

/// List the ids of a process's threads.
///
/// Errors: `Gone`, `Rights`.
pub(crate) fn thread_ids(pid: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&path)
        .map_err(|error| Error::from_os(&error, &format!("reading {path}"), Kind::Internal))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Read the state of a thread from /proc; None if it does not exist or is an io_uring worker.
pub(crate) fn read_thread(pid: u32, tid: u32) -> Option<RawThread> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let count = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    if fields.nth(5)?.parse::<u32>().ok()? & PF_IO_WORKER != 0 {
        return None;
    }
    let ns_tid = field("NSpid:").and_then(|ids| ids.split_whitespace().last()?.parse().ok()).unwrap_or(tid);
    Some(RawThread {
        tid,
        ns_tid,
        state,
        comm: field("Name:").unwrap_or_default().to_owned(),
        consistency: if state == 'R' { Consistency::Running } else { Consistency::Consistent },
        switches: count("voluntary_ctxt_switches:") + count("nonvoluntary_ctxt_switches:"),
        ran: 0,
        registers: Registers::default(),
        syscall: -1,
        arg0: 0,
        stack: Vec::new().into(),
        kernel: Vec::new(),
        returns: Vec::new(),
        unchanged: false,
        shallow: false,
        stack_wanted: 0,
    })
}
