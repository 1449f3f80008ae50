//! Fuzzes symbol packs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| innoscope_fuzz::pack::run(data));
