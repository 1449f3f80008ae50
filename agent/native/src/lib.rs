//! The Rust core of Innoscope. It copies the stacks of all threads of a live process (without stopping the threads,
//! unless ptrace is requested), unwinds the stacks offline and resolves their symbols.
//!
//! - `arch` contains everything that differs between processor architectures.
//! - `snapshot` copies registers and stacks.
//! - `modules` and `symbols` read the files that are mapped into the process.
//! - `unwind` turns stacks into return addresses, and `names` turns addresses into function names.
//! - `stack_budget` limits the memory for the stacks of all processes together.
//! - `process` combines these into one snapshot.
//! - `classify` determines what threads are waiting for, and their kinds.
//! - `samples` counts the stacks that BPF programs or perf events send.
//! - `perf_event` opens perf events and reads their ring buffers.
//! - `digest` normalizes SQL statements, so that literals can be discarded.
//! - `history` writes and reads the files of the active session history.
//! - `statements` reads the statements that connections are executing.
//! - `layout` finds the offsets of the members of global variables and types.
//! - `python` and `python_*` are the interface to Python.

pub mod arch;
pub mod bpfmap;
pub mod calibration;
pub mod cfi;
pub mod classify;
pub mod closers;
pub mod code;
pub mod confined;
pub mod descriptors;
pub mod digest;
pub mod error;
pub mod flamegraph;
#[cfg(feature = "history")]
pub mod history;
pub mod kernel_bugs;
pub mod layout;
pub mod malloc;
pub mod maps;
pub mod memory;
pub mod modules;
pub mod multi;
pub mod names;
pub mod openers;
pub mod pacing;
pub mod perf_event;
pub mod pprof;
pub mod probe;
pub mod process;
pub mod programs;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_features;
#[cfg(feature = "python")]
mod python_files;
#[cfg(feature = "python")]
mod python_frames;
#[cfg(feature = "python")]
mod python_hash;
#[cfg(feature = "python")]
mod python_history;
#[cfg(feature = "python")]
mod python_layout;
#[cfg(feature = "python")]
mod python_output;
#[cfg(feature = "python")]
mod python_packs;
#[cfg(feature = "python")]
mod python_probing;
#[cfg(feature = "python")]
mod python_samples;
#[cfg(feature = "python")]
mod python_statements;
#[cfg(feature = "python")]
mod python_waits;
pub mod references;
pub mod return_probes;
pub mod samples;
pub mod snapshot;
pub mod stack_budget;
pub mod statements;
pub mod symbols;
pub mod trace;
pub mod unwind;
pub mod uprobe;
pub mod uprobe_check;
