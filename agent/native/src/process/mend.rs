//! Completes copies that are not usable as they are: deep stacks, and threads that ran while they were
//! copied.

use std::time::Duration;

use super::{Finished, Process};
use crate::error::Result;
use crate::look::{Look, Trust};
use crate::memory;
use crate::snapshot::{Motion, RawThread, Registers, perf};
use crate::unwind::{End, Walk};

/// How many rounds of sampling and copying a thread gets that ran or was on a CPU.
const ROUNDS: usize = 5;
/// How long to wait for the samples of one round. A running thread is sampled after about 20 µs of its CPU
/// time. One that went to sleep meanwhile gives no sample and is copied again.
const PATIENCE: Duration = Duration::from_millis(1);
/// Maximum bytes of a deep stack that are read.
const DEEP_BYTES: usize = 1024 * 1024;

impl Process {
    /// Unwind a copy although it is not consistent, or although it would have to be completed and there is no
    /// time left.
    pub(super) fn finish_as_copied(&mut self, mut thread: RawThread) -> Finished {
        let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns);
        let trust = match thread.motion {
            Motion::Moved => Trust::Torn,
            Motion::Running => Trust::Stale,
            Motion::Still => {
                thread.shallow = true;
                Trust::Truncated
            }
        };
        Finished::new(thread, walk, trust)
    }

    /// Unwind a consistent copy, reading more of its stack if it is deeper. Returns the thread as `Err` if it
    /// ran in the meantime.
    pub(super) fn finish_still(
        &mut self,
        mut thread: RawThread,
    ) -> Result<std::result::Result<Finished, RawThread>> {
        let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns);
        // If even the shortened copy reaches the root, nothing was cut.
        thread.shallow &= walk.end != End::Root;
        let trust = match walk.end {
            End::Root => Trust::Exact,
            End::Lost | End::Elsewhere | End::Budget => Trust::Incomplete,
            End::BeyondCopy if thread.shallow => Trust::Truncated,
            End::BeyondCopy => return self.finish_deep(thread, walk),
        };
        Ok(Ok(Finished::new(thread, walk, trust)))
    }

    /// Read a stack that is deeper than its copy, without a time limit. The result is used only if the thread
    /// has not run since it was copied.
    fn finish_deep(
        &mut self,
        mut thread: RawThread,
        short: Walk,
    ) -> Result<std::result::Result<Finished, RawThread>> {
        let Registers { sp, .. } = thread.registers;
        if self.deep_left == 0 {
            thread.shallow = true;
            return Ok(Ok(Finished::new(thread, short, Trust::Truncated)));
        }
        let stack = memory::read_some(self.pid, sp, DEEP_BYTES).unwrap_or_default();
        self.deep_left = self.deep_left.saturating_sub(stack.len() as u64);
        if stack.len() <= thread.stack.len() {
            return Ok(Ok(Finished::new(thread, short, Trust::Incomplete)));
        }
        let unmoved = self
            .source
            .glance(thread.tid)?
            .is_some_and(|now| now.motion == Motion::Still && now.switches == thread.switches);
        if !unmoved && self.source.name() == "bpf" {
            return Ok(Err(thread));
        }
        let walk = self.unwinder.walk(&self.modules, thread.registers, &stack, &thread.returns);
        let trust = match walk.end {
            End::Root => Trust::Exact,
            End::BeyondCopy if stack.len() == DEEP_BYTES => Trust::Truncated,
            End::BeyondCopy | End::Lost | End::Elsewhere | End::Budget => Trust::Incomplete,
        };
        Ok(Ok(Finished::new(thread, walk, trust)))
    }

    /// Retry threads that ran: sample those on a CPU and copy the others again, for some rounds.
    pub(super) fn mend(
        &mut self,
        moved: Vec<RawThread>,
        done: &mut Vec<Finished>,
        look: &mut Look,
    ) -> Result<()> {
        let mut open = moved;
        for round in 1..=ROUNDS {
            if open.is_empty() {
                return Ok(());
            }
            self.sample_running(&mut open, done, look);
            for thread in std::mem::take(&mut open) {
                match self.source.copy_one(thread.tid)? {
                    Some(again) if again.motion == Motion::Still => match self.finish_still(again)? {
                        Ok(finished) => done.push(finished),
                        Err(thread) => open.push(thread),
                    },
                    Some(again) if round < ROUNDS => open.push(again.without_stack()),
                    Some(again) => open.push(again),
                    None => {} // the thread has exited
                }
            }
        }
        self.sample_running(&mut open, done, look);
        for thread in open {
            done.push(self.finish_as_copied(thread));
        }
        Ok(())
    }

    /// Sample the threads that are on a CPU by perf events. Threads that give no usable sample stay in
    /// `open`.
    fn sample_running(&mut self, open: &mut Vec<RawThread>, done: &mut Vec<Finished>, look: &mut Look) {
        let running: Vec<u32> =
            open.iter().filter(|thread| thread.motion == Motion::Running).map(|thread| thread.tid).collect();
        if running.is_empty() || self.source.name() != "bpf" {
            return;
        }
        let samples = match perf::sample(&running, PATIENCE) {
            Ok(samples) => samples,
            Err(error) => {
                let note = format!(
                    "threads on a CPU could not be sampled (perf_event_open: {error}); their stacks are stale"
                );
                if !look.notes.contains(&note) {
                    look.notes.push(note);
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
                // Possibly in the middle of a hand-written prologue: the next sample may succeed.
                End::Lost | End::Elsewhere | End::Budget => continue,
            };
            look.sampled += 1;
            let thread = open.swap_remove(index);
            let thread = RawThread { registers: sample.registers, syscall: -1, ..thread };
            done.push(Finished::new(thread, walk, trust));
        }
    }
}
