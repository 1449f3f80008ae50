//! Detects which methods work on this host, by trying each on this process or on a child process.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::Result;
use crate::multi;
use crate::samples::events::{Options, PerfOnCpu};
use crate::samples::programs::{OnCpu, Target};
use crate::samples::switch_events::{self, PerfOffCpu};
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::loader::Variant;
use crate::snapshot::perf;
use crate::snapshot::procfs::ProcfsSource;
use crate::snapshot::ptrace::PtraceSource;
use crate::snapshot::{Consistency, RawThread, Source};
use crate::uprobe;

/// Load a snapshot program and run it on this process. Return whether it works, and the details.
pub fn bpf(sleepable: bool) -> (bool, String) {
    let variant = Variant { sleepable, kernel_stacks: false };
    describe_copy(BpfSource::new(std::process::id(), variant, None).and_then(|mut source| source.copy_all()))
}

/// Copy the threads of this process by reading /proc. Return whether it works, and the details.
pub fn procfs() -> (bool, String) {
    describe_copy(ProcfsSource::new(std::process::id()).and_then(|mut source| source.copy_all()))
}

fn describe_copy(tried: Result<Vec<RawThread>>) -> (bool, String) {
    describe(tried.map(|threads| {
        let copied: usize = threads.iter().map(|thread| thread.stack.len()).sum();
        (copied > 0, format!("copied {copied} bytes of stack of {} threads of this process", threads.len()))
    }))
}

/// Time limit for the sample of a thread that is started as a test.
const SAMPLE_TIMEOUT: Duration = Duration::from_millis(500);

/// Sample a running thread of this process with a perf event. Return whether it works, and the details.
pub fn perf() -> (bool, String) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let stop = &stop;
        scope.spawn(move || {
            let _ = send.send(nix::unistd::gettid().as_raw() as u32);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let tid = receive.recv().unwrap_or_default();
        let sampled = perf::sample(&[tid], &(SAMPLE_TIMEOUT..=SAMPLE_TIMEOUT));
        stop.store(true, Ordering::Relaxed);
        match sampled.as_deref() {
            Ok([sample]) => {
                (true, format!("sampled a running thread with {} bytes of stack", sample.stack.len()))
            }
            Ok(_) => (false, "the event was opened, but no sample arrived within 500 ms".to_owned()),
            Err(error) => (false, format!("perf_event_open: {error}")),
        }
    })
}

/// Period of the clock events that are started as a test.
const PROFILE_PERIOD_NS: u64 = 10_000_000;

/// Start a CPU profile of this process with BPF. Return whether it works, and the details.
pub fn profile_bpf() -> (bool, String) {
    let target = Target { pid: std::process::id(), start_time: 0, kernel: false, ring_bytes: 1 << 20 };
    let started = OnCpu::new(target, PROFILE_PERIOD_NS).and_then(|mut profile| profile.begin());
    describe(started.map(|()| (true, "a program was attached to a clock event on each CPU".to_owned())))
}

/// Start a CPU profile of this process with perf events. Return whether it works, and the details.
pub fn profile_perf() -> (bool, String) {
    let options = Options { period_ns: PROFILE_PERIOD_NS, kernel: false, ring_bytes: 128 << 10 };
    let started = PerfOnCpu::new(std::process::id(), options).and_then(|mut profile| {
        profile.begin()?;
        Ok(profile.mode())
    });
    describe(started.map(|mode| {
        let clocks = if mode.per_cpu { "one clock event per CPU" } else { "clock events for each thread" };
        let part = if mode.in_kernel { "" } else { ", without the time in the kernel" };
        (true, format!("{clocks}{part}"))
    }))
}

/// Open the perf events of a profile of this process's waits. Return whether it works, and the details.
pub fn profile_waits_perf() -> (bool, String) {
    let options = switch_events::Options { kernel: false, max_stacks: 1, ring_bytes: 512 << 10 };
    let started = PerfOffCpu::new(std::process::id(), options).and_then(|mut profile| {
        profile.begin()?;
        Ok(profile.per_cpu())
    });
    describe(started.map(|per_cpu| {
        let events = if per_cpu {
            "one event per CPU, and samples of the waits' stacks"
        } else {
            "events for each thread, and stacks from snapshots"
        };
        (true, events.to_owned())
    }))
}

/// Count a call to the calibration function with a uprobe link. Return whether it works, and the details.
pub fn uprobe_links() -> (bool, String) {
    match multi::detect() {
        Ok(()) => (true, "a link counted a call on another thread".to_owned()),
        Err(why) => (false, why.clone()),
    }
}

/// Count a call to the calibration function with a perf event. Return whether it works, and the details.
pub fn uprobe_events() -> (bool, String) {
    match uprobe::detect_events() {
        Ok(()) => (true, "an event counted a call on another thread".to_owned()),
        Err(why) => (false, why),
    }
}

/// Attach to a child process with ptrace, stop it and detach. Return whether it works, and the details.
pub fn ptrace() -> (bool, String) {
    let child = Command::new("sleep").arg("10").stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return (false, format!("cannot start a child process to test with: {error}")),
    };
    let tried = PtraceSource::new(child.id()).copy_all();
    // Errors are ignored: the child process has no other purpose.
    let _ = child.kill();
    let _ = child.wait();
    describe(tried.map(|threads| {
        let held = threads.iter().filter(|thread| thread.consistency == Consistency::Consistent).count();
        (held > 0, "stopped a child process and detached from it".to_owned())
    }))
}

fn describe(tried: Result<(bool, String)>) -> (bool, String) {
    tried.unwrap_or_else(|error| (false, error.detail))
}
