//! Completes copies that cannot be used as they are: deep stacks, and threads that ran while they were
//! copied.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::{Process, UnwoundThread};
use crate::error::Result;
use crate::memory;
use crate::snapshot::{Consistency, RawThread, Registers, Snapshot, Trust, perf};
use crate::unwind::{End, Walk};

/// Maximum number of rounds in which a thread that ran or was on a CPU is sampled or copied again.
const ROUNDS: usize = 5;
/// Limits of the wait for the samples of one round. A running thread is sampled after 20 µs of its CPU time. A
/// thread that has gone to sleep in the meantime yields no sample, and is copied again. On a slow host, opening the
/// events takes longer than the minimum; the wait then ends after the same time, or at the maximum.
const SAMPLE_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(20);
/// Maximum number of bytes that are read from a deep stack.
const DEEP_BYTES: usize = 1024 * 1024;

impl Process {
    /// Unwind a copy as it is: an inconsistent one, or one that stays incomplete because no retries are left.
    pub(super) fn finish_as_copied(&mut self, mut thread: RawThread) -> UnwoundThread {
        let walk = if thread.registers == Registers::default() {
            Walk::unknown()
        } else {
            self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns)
        };
        let trust = match thread.consistency {
            Consistency::Torn => Trust::Torn,
            Consistency::Running => Trust::Stale,
            Consistency::Consistent => {
                thread.shallow = true;
                Trust::Truncated
            }
        };
        UnwoundThread::new(thread, walk, trust)
    }

    /// Unwind a consistent copy, after reading the remaining stack if the copy is not complete. Return the
    /// thread as `Err` if it ran in the meantime.
    pub(super) fn finish_consistent(
        &mut self,
        mut thread: RawThread,
    ) -> Result<std::result::Result<UnwoundThread, RawThread>> {
        let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns);
        // If unwinding the shortened copy reaches the root, the stack was not truncated.
        thread.shallow &= walk.end != End::Root;
        let trust = match walk.end {
            End::Root if walk.inferred => Trust::Inferred,
            End::Root => Trust::Exact,
            End::Lost | End::OutsideModules | End::Budget | End::NoFramePointer | End::NoLinkRegister => {
                Trust::Incomplete
            }
            End::BeyondCopy if thread.shallow => Trust::Truncated,
            End::BeyondCopy => return self.finish_deep(thread, walk),
        };
        Ok(Ok(UnwoundThread::new(thread, walk, trust)))
    }

    /// Read a stack that is larger than its copy. Except with ptrace, the result is used only if the thread has
    /// not run since it was copied.
    fn finish_deep(
        &mut self,
        mut thread: RawThread,
        partial: Walk,
    ) -> Result<std::result::Result<UnwoundThread, RawThread>> {
        let Registers { sp, .. } = thread.registers;
        if self.deep_bytes_left == 0 {
            thread.shallow = true;
            return Ok(Ok(UnwoundThread::new(thread, partial, Trust::Truncated)));
        }
        let stack = memory::read_some(self.pid, sp, DEEP_BYTES).unwrap_or_default();
        self.deep_bytes_left = self.deep_bytes_left.saturating_sub(stack.len() as u64);
        if stack.len() <= thread.stack.len() {
            return Ok(Ok(UnwoundThread::new(thread, partial, Trust::Incomplete)));
        }
        let unmoved = self
            .source
            .read_state(thread.tid)?
            .is_some_and(|now| now.consistency == Consistency::Consistent && now.switches == thread.switches);
        if !unmoved && !self.source.stops_threads() {
            return Ok(Err(thread));
        }
        let walk = self.unwinder.walk(&self.modules, thread.registers, &stack, &thread.returns);
        let trust = match walk.end {
            End::Root if walk.inferred => Trust::Inferred,
            End::Root => Trust::Exact,
            End::BeyondCopy if stack.len() == DEEP_BYTES => Trust::Truncated,
            End::BeyondCopy
            | End::Lost
            | End::OutsideModules
            | End::Budget
            | End::NoFramePointer
            | End::NoLinkRegister => Trust::Incomplete,
        };
        Ok(Ok(UnwoundThread::new(thread, walk, trust)))
    }

    /// Retry threads that ran: sample those on a CPU and copy the others again, for up to [`ROUNDS`] rounds.
    pub(super) fn retry_moved(
        &mut self,
        moved: Vec<RawThread>,
        done: &mut Vec<UnwoundThread>,
        snapshot: &mut Snapshot,
    ) -> Result<()> {
        let mut open = moved;
        for round in 1..=ROUNDS {
            if open.is_empty() {
                return Ok(());
            }
            self.sample_running(&mut open, done, snapshot);
            for thread in std::mem::take(&mut open) {
                match self.source.copy_one(thread.tid)? {
                    Some(again) if again.consistency == Consistency::Consistent => {
                        match self.finish_consistent(again)? {
                            Ok(finished) => done.push(finished),
                            Err(thread) => open.push(thread),
                        }
                    }
                    Some(again) if round < ROUNDS => open.push(again.without_stack()),
                    Some(again) => open.push(again),
                    None => {} // the thread has exited
                }
            }
        }
        self.sample_running(&mut open, done, snapshot);
        for thread in open {
            done.push(self.finish_as_copied(thread));
        }
        Ok(())
    }

    /// Sample the threads that are on a CPU with perf events. Threads without a usable sample stay in `open`.
    fn sample_running(
        &mut self,
        open: &mut Vec<RawThread>,
        done: &mut Vec<UnwoundThread>,
        snapshot: &mut Snapshot,
    ) {
        let running: Vec<u32> = open
            .iter()
            .filter(|thread| thread.consistency == Consistency::Running)
            .map(|thread| thread.tid)
            .collect();
        if running.is_empty() || self.source.stops_threads() {
            return;
        }
        let samples = match perf::sample(&running, &SAMPLE_TIMEOUT) {
            Ok(samples) => samples,
            Err(error) => {
                let note = format!(
                    "cannot sample threads on a CPU (perf_event_open: {error}); their stacks are stale"
                );
                if !snapshot.notes.contains(&note) {
                    snapshot.notes.push(note);
                }
                return;
            }
        };
        for sample in samples {
            let Some(index) = open.iter().position(|thread| thread.tid == sample.tid) else {
                continue;
            };
            let walk =
                self.unwinder.walk(&self.modules, sample.registers, &sample.stack, &open[index].returns);
            let trust = match walk.end {
                End::Root => Trust::OnCpu,
                End::BeyondCopy => Trust::Truncated,
                // The thread may be in the middle of a hand-written prologue, so the next sample may succeed.
                End::Lost | End::OutsideModules | End::Budget | End::NoFramePointer | End::NoLinkRegister => {
                    continue;
                }
            };
            snapshot.sampled += 1;
            let thread = open.swap_remove(index);
            let thread = RawThread { registers: sample.registers, syscall: -1, ..thread };
            done.push(UnwoundThread::new(thread, walk, trust));
        }
    }
}
