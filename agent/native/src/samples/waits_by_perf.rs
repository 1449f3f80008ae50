//! Profiles waits with perf events: resolves the stacks, and adds the waits to the accounting that BPF profiles use.

use super::record::Capture;
use super::switch_events::PerfOffCpu;
use super::waits::Waits;
use super::{Aggregator, Place, Samples};
use crate::error::Result;
use crate::pacing::Pacer;
use crate::snapshot::{RawThread, Trust};

impl Samples {
    /// Process the records of context switches and the sampled stacks.
    pub fn read_switches(&mut self, events: &mut PerfOffCpu) -> Result<()> {
        let mut pacer = Pacer::start();
        let aggregator = &mut self.aggregator;
        aggregator.unwinder.refill();
        let stacks = events.read(&mut |capture| {
            pacer.yield_if_due();
            aggregator.place_of_wait(capture)
        })?;
        aggregator.records += stacks;
        events.apply(&mut aggregator.waits);
        Ok(())
    }

    /// Copy the stacks of the threads whose current wait has no stack yet.
    pub fn add_waiting(&mut self, events: &mut PerfOffCpu) -> Result<()> {
        let mut pacer = Pacer::start();
        let aggregator = &mut self.aggregator;
        aggregator.unwinder.refill();
        events.take_snapshot(&mut |thread| {
            pacer.yield_if_due();
            aggregator.place_of_thread(thread)
        })
    }

    /// Complete a profile of waits after its end.
    pub fn settle_switches(&mut self, events: &mut PerfOffCpu) -> Result<&Waits> {
        self.read_switches(events)?;
        events.settle(&mut self.aggregator.waits);
        Ok(&self.aggregator.waits)
    }
}

impl Aggregator {
    fn place_of_wait(&mut self, capture: &Capture<'_>) -> Place {
        self.bytes += capture.stack.len() as u64;
        let kernel = &capture.kernel[self.stacks.in_scheduler(&capture.kernel)..];
        let Capture { registers, stack, returns, syscall, .. } = capture;
        let (stack, trust) = self.walk(*registers, stack, kernel, returns, Trust::Exact);
        Place { stack, trust, syscall: *syscall, file: -1 }
    }

    fn place_of_thread(&mut self, thread: &RawThread) -> Place {
        let file = self.file(thread.syscall, thread.arg0);
        let (stack, trust) =
            self.walk(thread.registers, &thread.stack, &thread.kernel, &thread.returns, Trust::Exact);
        Place { stack, trust, syscall: thread.syscall, file }
    }
}
