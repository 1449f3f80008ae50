//! Refuses return probes that would kill the probed process.
//!
//! On x86-64, Linux 6.11 and newer return from a probed function through the system call `uretprobe`. Until Linux
//! 6.13.3, seccomp filters can reject this call, and the process then crashes ("seccomp: passthrough uretprobe
//! systemcall without filtering", kernel/seccomp.c). Such a filter can come from a container runtime, or from
//! systemd (SystemCallFilter).

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::sync::OnceLock;

use crate::arch::host;
use crate::closers::Child;
use crate::confined::jail;
use crate::error::{Error, Kind, Result};

/// The kernel's function for the system call.
const IMPLEMENTATION: &str = "__x64_sys_uretprobe";

/// Check that a process survives return probes.
///
/// Errors: `Bpf` if it has a seccomp filter, and this kernel lets filters reject the system call `uretprobe`.
pub fn check(pid: u32) -> Result<()> {
    static REJECTED: OnceLock<bool> = OnceLock::new();
    let Some(number) = host::SYS_URETPROBE else { return Ok(()) };
    if !has_filter(pid) || !*REJECTED.get_or_init(|| is_implemented() && can_be_rejected(number)) {
        return Ok(());
    }
    let detail = format!(
        "a return probe could kill process {pid}: it has a seccomp filter, and this kernel lets filters reject the \
         system call uretprobe (fixed in Linux 6.12.14, 6.13.3 and newer)"
    );
    Err(Error::new(Kind::Bpf, detail))
}

/// Return true if the process has a seccomp filter. All its threads normally have the same one.
fn has_filter(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() != "0"))
}

/// Return true if the kernel has the system call, or does not show its functions.
fn is_implemented() -> bool {
    let Ok(file) = File::open("/proc/kallsyms") else { return true };
    BufReader::new(file).lines().map_while(io::Result::ok).any(|line| line.ends_with(IMPLEMENTATION))
}

/// Return true if a seccomp filter can reject a system call: try it in a child with such a filter. `uretprobe`, which
/// the child calls from the wrong place, kills the child if it is not rejected.
fn can_be_rejected(number: libc::c_long) -> bool {
    let filter = jail::reject(number);
    let child = Child::start(0, || {
        // SAFETY: the calls take numbers, and only affect this child, which shares no memory with its parent.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0); // no core file
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        }
        if jail::load_filter(&filter).is_ok() {
            // SAFETY: the call has no arguments.
            unsafe { libc::syscall(number) };
        }
    });
    // SIGSYS: another filter of this process, such as its systemd unit's, rejected the call.
    child.map_or(true, |child| child.wait() != Some(libc::SIGILL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_can_reject_an_ordinary_call() {
        assert!(can_be_rejected(libc::SYS_getppid));
    }

    #[test]
    fn a_process_without_a_filter_is_accepted() {
        check(std::process::id()).expect("the tests have no filter");
        check(u32::MAX).expect("there is no such process");
    }
}
