//! Finds out whether a process is in a container.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Return true if a process is in another pid or user namespace than this one, or if that cannot be read.
///
/// Whoever controls a container can make accesses to its memory wait forever, for instance by placing a stack
/// in a file of a FUSE file system.
pub fn in_container(pid: u32) -> bool {
    ["pid", "user"].iter().any(|namespace| {
        let inode = |process: &str| Some(fs::metadata(format!("/proc/{process}/ns/{namespace}")).ok()?.ino());
        let theirs = inode(&pid.to_string());
        theirs.is_none() || theirs != inode("self")
    })
}
