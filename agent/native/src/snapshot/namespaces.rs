//! Detects whether a process is in a container.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The kernel's first namespaces and their inodes (PROC_PID_INIT_INO and PROC_USER_INIT_INO in proc_ns.h).
const FIRST: [(&str, u64); 2] = [("pid", 0xEFFF_FFFC), ("user", 0xEFFF_FFFD)];

/// Return true if a process is not in the first pid and user namespaces, or if that cannot be read.
///
/// Whoever controls a container can make accesses to its memory wait forever, for instance by placing a stack
/// in a file of a FUSE file system.
pub fn in_container(pid: u32) -> bool {
    FIRST.iter().any(|(name, first)| {
        fs::metadata(format!("/proc/{pid}/ns/{name}")).map_or(true, |namespace| namespace.ino() != *first)
    })
}
