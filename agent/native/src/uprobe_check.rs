//! Checks whether a method of attaching uprobes works on this host, by probing one of our own functions.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::process;
use std::thread;

use crate::arch::host::innoscope_calibration;
use crate::bpfmap::Map;
use crate::closers;
use crate::error::Result;
use crate::maps;
use crate::programs::{self, Shape};
use crate::uprobe::Place;

const BPF_MAP_TYPE_ARRAY: u32 = libbpf_sys::BPF_MAP_TYPE_ARRAY;
/// A program, as an array of struct bpf_insn, that adds one to the only value of map 0.
const COUNT: [[u8; 8]; 11] = [
    [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0], // *(u32 *)(r10 - 4) = 0
    [0x18, 0x11, 0, 0, 0, 0, 0, 0],       // r1 = map 0
    [0, 0, 0, 0, 0, 0, 0, 0],
    [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],             // r2 = r10
    [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff], // r2 -= 4
    [0x85, 0, 0, 0, 1, 0, 0, 0],                // r0 = bpf_map_lookup_elem(r1, r2)
    [0x15, 0, 2, 0, 0, 0, 0, 0],                // if r0 == 0 goto +2
    [0xb7, 0x01, 0, 0, 1, 0, 0, 0],             // r1 = 1
    [0xdb, 0x10, 0, 0, 0, 0, 0, 0],             // lock *(u64 *)(r0 + 0) += r1
    [0xb7, 0, 0, 0, 0, 0, 0, 0],                // r0 = 0
    [0x95, 0, 0, 0, 0, 0, 0, 0],                // exit
];

/// Check that a probe counts a call made by a thread other than the process's first one. `load` loads the program
/// (name, code and maps), and `attach` attaches it. Return the reason if it does not work.
pub fn count_one_call(
    load: impl FnOnce(&str, &[u8], &[RawFd]) -> Result<OwnedFd>,
    attach: impl FnOnce(RawFd, Place<'_>) -> Result<OwnedFd>,
) -> std::result::Result<(), String> {
    let calls = Shape {
        name: "calls".to_owned(),
        kind: BPF_MAP_TYPE_ARRAY,
        key_bytes: 4,
        value_bytes: 8,
        entries: 1,
        flags: 0,
    };
    let counter = programs::create_map(&calls).map_err(|error| error.to_string())?;
    let program =
        load("try_out", COUNT.as_flattened(), &[counter.as_raw_fd()]).map_err(|error| error.to_string())?;
    let address = innoscope_calibration as *const () as u64;
    let pid = process::id();
    let own = maps::executable(pid)
        .map_err(|error| error.to_string())?
        .into_iter()
        .find(|one| (one.start..one.end).contains(&address))
        .ok_or("our own code is not mapped")?;
    let file = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", own.start, own.end));
    let place = Place { file: &file, offset: address - own.start + own.offset, pid, on_return: false };
    let probe = attach(program.as_raw_fd(), place).map_err(|error| error.to_string())?;
    let called = thread::spawn(|| innoscope_calibration(1)).join();
    closers::close_all(vec![probe]);
    let map = Map { descriptor: counter.as_raw_fd(), key_bytes: 4, words: 1, per_cpu: false };
    let calls = map.array(1).map_err(|error| error.to_string())?;
    if called.is_ok() && calls == [[1]] {
        Ok(())
    } else {
        Err("the calls of some threads are not counted".to_owned())
    }
}
