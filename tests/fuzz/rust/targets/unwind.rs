//! Fuzzes unwinding with the unwind tables of a hostile file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| innoscope_fuzz::unwind::run(data));
