//! Detects which methods work on this host, by trying each on this process or on a child process.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::error::Result;
use crate::multi;
use crate::snapshot::bpf::BpfSource;
use crate::snapshot::perf;
use crate::snapshot::ptrace::PtraceSource;
use crate::snapshot::{Consistency, Source};

/// Load the snapshot program and run it on this process; return whether it works, and the evidence.
pub fn bpf() -> (bool, String) {
    let tried = BpfSource::new(std::process::id(), false, None).and_then(|mut source| source.copy_all());
    describe(tried.map(|threads| {
        let copied: usize = threads.iter().map(|thread| thread.stack.len()).sum();
        (copied > 0, format!("copied {copied} bytes of stack of {} threads of this process", threads.len()))
    }))
}

/// Sample a running thread of this process with a perf event; return whether it works, and the evidence.
pub fn perf() -> (bool, String) {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        let stop = &stop;
        scope.spawn(move || {
            // SAFETY: gettid has no arguments and cannot fail.
            let _ = send.send(unsafe { libc::gettid() } as u32);
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let tid = receive.recv().unwrap_or_default();
        let sampled = perf::sample(&[tid], Duration::from_millis(500));
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

/// Count a call of the calibration function with a uprobe link; return whether it works, and the evidence.
pub fn uprobe_links() -> (bool, String) {
    match multi::detect() {
        Ok(()) => (true, "a link counted a call on another thread".to_owned()),
        Err(why) => (false, why.clone()),
    }
}

/// Seize, interrupt and detach a child process; return whether it works, and the evidence.
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
