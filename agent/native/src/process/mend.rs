//! Threads whose copy is not whole: deep stacks, and threads that ran while they were copied.

use std::time::Duration;

use super::{Finished, Process};
use crate::error::Result;
use crate::look::{Look, Trust};
use crate::memory;
use crate::snapshot::{Motion, RawThread, Registers, perf};
use crate::unwind::{End, Walk};

/// Rounds of sampling and copying again that a thread gets which moved or was on a CPU.
const ROUNDS: usize = 5;
/// Wait for the samples of one round. A thread that runs is sampled within some 20 µs of its CPU time; one that
/// went to sleep meanwhile is not, and is copied again.
const PATIENCE: Duration = Duration::from_millis(1);
/// Most of a deep stack that is fetched in a second go.
const DEEP_BYTES: usize = 1024 * 1024;

impl Process {
    /// Walks a copy that is not consistent, or that there is no more time to complete.
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

    /// Walks a consistent copy, fetching more of its stack if it goes on; gives the thread back if it moved then.
    pub(super) fn finish_still(
        &mut self,
        mut thread: RawThread,
    ) -> Result<std::result::Result<Finished, RawThread>> {
        let walk = self.unwinder.walk(&self.modules, thread.registers, &thread.stack, &thread.returns);
        // A short copy of a short stack has all of it: nothing was cut.
        thread.shallow &= walk.end != End::Root;
        let trust = match walk.end {
            End::Root => Trust::Exact,
            End::Lost | End::Elsewhere | End::Budget => Trust::Incomplete,
            End::BeyondCopy if thread.shallow => Trust::Truncated,
            End::BeyondCopy => return self.finish_deep(thread, walk),
        };
        Ok(Ok(Finished::new(thread, walk, trust)))
    }

    /// A stack that goes on above the copy: the rest is read at leisure, and counts only if the thread has
    /// not run since.
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

    /// Threads that ran: those on a CPU are sampled, the others copied again, for some rounds.
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
                    None => {} // it ended
                }
            }
        }
        self.sample_running(&mut open, done, look);
        for thread in open {
            done.push(self.finish_as_copied(thread));
        }
        Ok(())
    }

    /// Takes fresh samples of those that are on a CPU; who does not run in the meantime stays in `open`.
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
                // Mid-prologue in hand-written assembler, say: the next sample may fare better.
                End::Lost | End::Elsewhere | End::Budget => continue,
            };
            look.sampled += 1;
            let thread = open.swap_remove(index);
            let thread = RawThread { registers: sample.registers, syscall: -1, ..thread };
            done.push(Finished::new(thread, walk, trust));
        }
    }
}
