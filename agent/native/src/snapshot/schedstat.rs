//! Reads how long and how often threads have run from `/proc/PID/task/TID/schedstat`. Reading the file of one
//! thread takes about a microsecond, and needs no privileges.
//!
//! The file contains the nanoseconds that the thread spent on a CPU, the nanoseconds that it waited for one,
//! and the number of times that it was scheduled on one (fs/proc/base.c, `proc_pid_schedstat`). The first
//! number is updated when the thread leaves the CPU, and the last when it is scheduled on one. Therefore, if
//! their sum is the same at two times, and the thread was off the CPU at the second time, it did not run in
//! between.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustc_hash::FxHashMap;

/// Maximum length of the file: three 64-bit numbers.
const FILE_BYTES: usize = 128;
/// Maximum number of files that stay open between two calls.
const MAX_OPEN: usize = 256;

/// The numbers in the file of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedstat {
    /// Number of times that the thread was scheduled on a CPU.
    pub times_run: u64,
    /// Nanoseconds on a CPU plus `times_run`, as in `run_count()` of snapshot.bpf.c.
    pub run_count: u64,
}

impl Schedstat {
    /// Open the file of a thread.
    pub fn open(pid: u32, tid: u32) -> io::Result<File> {
        File::open(format!("/proc/{pid}/task/{tid}/schedstat"))
    }

    /// Read the numbers from the open file. Fail after the thread has exited, even if its id is reused.
    pub fn read(file: &File) -> io::Result<Self> {
        let mut bytes = [0; FILE_BYTES];
        let length = file.read_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes[..length]);
        Self::parse(&text)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("unexpected text {text:?}")))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
        let (run_ns, times_run) = (numbers.next()??, numbers.nth(1)??);
        Some(Self { times_run, run_count: run_ns.wrapping_add(times_run) })
    }
}

/// Reads the run counts of changing sets of threads of one process.
pub struct RunCounts {
    pid: u32,
    files: FxHashMap<u32, File>,
}

impl RunCounts {
    /// Create a reader for process `pid`.
    pub fn new(pid: u32) -> Self {
        Self { pid, files: FxHashMap::default() }
    }

    /// Return the run counts of these threads, except those whose file cannot be read. The result is empty on
    /// kernels without CONFIG_SCHED_INFO, which keep no such counts.
    pub fn read(&mut self, tids: &[u32]) -> Vec<(u32, u64)> {
        let mut before = std::mem::take(&mut self.files);
        let mut counts = Vec::with_capacity(tids.len());
        for &tid in tids {
            let open = before.remove(&tid).map_or_else(|| Schedstat::open(self.pid, tid), Ok);
            let Ok(file) = open else { continue };
            let Ok(found) = Schedstat::read(&file) else { continue };
            if found.times_run > 0 {
                counts.push((tid, found.run_count));
            }
            if self.files.len() < MAX_OPEN {
                self.files.insert(tid, file);
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_time_and_the_number_of_runs() {
        let expected = Schedstat { times_run: 7, run_count: 1_007 };
        assert_eq!(Schedstat::parse("1000 55 7\n"), Some(expected));
        assert_eq!(Schedstat::parse("1000 55"), None);
        assert_eq!(Schedstat::parse("x 55 7"), None);
    }

    #[test]
    fn counts_only_living_threads_and_closes_other_files() {
        let own = std::process::id();
        let mut counts = RunCounts::new(own);
        assert!(matches!(counts.read(&[own, u32::MAX])[..], [(tid, count)] if tid == own && count > 0));
        assert_eq!(counts.files.len(), 1);
        assert!(counts.read(&[]).is_empty());
        assert!(counts.files.is_empty());
    }
}
