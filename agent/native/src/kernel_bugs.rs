//! Kernel bugs that no test can detect, because a test could freeze the host.
//!
//! Innoscope tests all other properties of the kernel instead of comparing versions.

use std::fs;
use std::ops::Range;

use crate::error::{Error, Kind, Result};

type Version = (u32, u32, u32);

/// Kernels in which a BPF program freezes the host if it reads user memory in an interrupt at the wrong moment: with
/// CONFIG_HARDENED_USERCOPY, the check of the destination waits for a lock that the interrupted code may hold ("mm: Fix
/// copy_from_user_nofault()", mm/maccess.c; parca-agent issue 1675). The same versions as in opentelemetry-ebpf-profiler
/// (tracer/helper.go, `hasProbeReadBug`).
const READS_FREEZE: [Range<Version>; 2] = [(5, 19, 0)..(6, 1, 36), (6, 2, 0)..(6, 3, 10)];

/// Check that BPF programs can read user memory in interrupts and in the scheduler.
///
/// Errors: `Bpf` if this kernel has, or may have, the bug.
pub fn check_user_reads() -> Result<()> {
    let read = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    let (release, build) = (read("osrelease"), read("version"));
    match version(&release, &build) {
        Some(version) if has_bug(version) => {
            let detail = format!(
                "Linux {} may freeze if a BPF program reads user memory in an interrupt (fixed in 6.1.36, 6.3.10 and 6.4)",
                release.trim()
            );
            Err(Error::new(Kind::Bpf, detail))
        }
        _ => Ok(()),
    }
}

fn has_bug(version: Version) -> bool {
    READS_FREEZE.iter().any(|range| range.contains(&version))
}

/// Return the kernel's upstream version. Debian's is in `build` (uname -v); `release` (uname -r) contains only the
/// major and minor number, as in 6.1.0-50-amd64.
fn version(release: &str, build: &str) -> Option<Version> {
    let text = build.split_once("Debian ").map_or(release, |(_, version)| version);
    let mut numbers = text.split(|character: char| !character.is_ascii_digit()).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_parsed() {
        let debian = "#1 SMP PREEMPT_DYNAMIC Debian 6.1.27-1 (2023-05-08)";
        assert_eq!(version("6.1.0-9-amd64", debian), Some((6, 1, 27)));
        assert_eq!(
            version("6.1.25-37.47.amzn2023.x86_64", "#1 SMP PREEMPT_DYNAMIC Mon Apr 24"),
            Some((6, 1, 25))
        );
        assert_eq!(version("5.14.0-570.el9.x86_64", "#1 SMP PREEMPT_DYNAMIC"), Some((5, 14, 0)));
        assert_eq!(version("6.19-rc1", ""), Some((6, 19, 0)));
        assert_eq!(version("unknown", ""), None);
    }

    #[test]
    fn only_kernels_without_the_fix_are_affected() {
        for affected in [(5, 19, 0), (6, 0, 19), (6, 1, 35), (6, 2, 16), (6, 3, 9)] {
            assert!(has_bug(affected), "{affected:?}");
        }
        for fixed in [(5, 18, 19), (6, 1, 36), (6, 1, 170), (6, 3, 10), (6, 4, 0), (6, 18, 44)] {
            assert!(!has_bug(fixed), "{fixed:?}");
        }
        check_user_reads().expect("the tests run on newer kernels");
    }
}
