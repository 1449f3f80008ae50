//! The core of Innoscope: copies the stacks of all threads of a live process without stopping it, unwinds
//! them offline and names what they are in.
//!
//! `snapshot` copies, `modules` and `symbols` know the files that are mapped, `unwind` walks, `names`
//! names, `process` puts one look together, `samples` adds up stacks that BPF programs send, `layout` knows
//! where global numbers lie, `python` is the face.

pub mod bpfmap;
pub mod calibration;
pub mod cfi;
pub mod closers;
pub mod code;
pub mod confined;
pub mod error;
pub mod flamegraph;
pub mod layout;
pub mod look;
pub mod maps;
pub mod memory;
pub mod modules;
pub mod multi;
pub mod names;
pub mod pprof;
pub mod probe;
pub mod process;
pub mod programs;
#[cfg(feature = "python")]
mod python;
#[cfg(feature = "python")]
mod python_layout;
#[cfg(feature = "python")]
mod python_packs;
#[cfg(feature = "python")]
mod python_probing;
#[cfg(feature = "python")]
mod python_samples;
pub mod references;
pub mod samples;
pub mod snapshot;
pub mod symbols;
pub mod trace;
pub mod turn;
pub mod unwind;
pub mod uprobe;
