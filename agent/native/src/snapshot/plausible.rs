//! Checks that BPF programs read the right members of the kernel's structures. If a new kernel changes a member
//! in a way that BTF does not show, all threads may seem to run.

use super::{Consistency, RawThread, Source};
use crate::error::{Error, Kind, Result};
use crate::samples::programs::online_cpus;

/// Return the source, or an error if all threads seem to be on a CPU although there are more than twice as
/// many threads as CPUs.
pub fn checked<S: Source>(mut source: S) -> Result<S> {
    let cpus = online_cpus()?.len();
    let states = source.read_states()?;
    if is_plausible(&states, cpus) {
        return Ok(source);
    }
    let detail =
        format!("all {} threads seem to run on {cpus} CPUs: this kernel is not supported", states.len());
    Err(Error::new(Kind::Bpf, detail))
}

fn is_plausible(states: &[RawThread], cpus: usize) -> bool {
    states.len() <= 2 * cpus || states.iter().any(|thread| thread.consistency != Consistency::Running)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::task::read_thread;

    #[test]
    fn many_threads_cannot_all_run() {
        let own = std::process::id();
        let thread = |consistency| RawThread { consistency, ..read_thread(own, own).expect("this process") };
        let mut states: Vec<_> = (0..9).map(|_| thread(Consistency::Running)).collect();
        assert!(!is_plausible(&states, 4));
        assert!(is_plausible(&states, 5));
        states.push(thread(Consistency::Consistent));
        assert!(is_plausible(&states, 4));
    }
}
