//! The limit on open files (RLIMIT_NOFILE). In a shell, the soft limit is usually 1,024, and the hard limit is much
//! higher.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit that code with many descriptors requests, the same as LimitNOFILE in the sensor's unit.
pub const MANY: u64 = 65_536;

/// Raise our soft limit to `wanted`, or to the hard limit if that is lower. Return the limit in effect, which is
/// the old one if it is higher or cannot be changed, and 0 if it is unknown.
pub fn raise_limit(wanted: u64) -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    let raised = wanted.min(hard);
    if raised > soft && setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_ok() { raised } else { soft }
}
