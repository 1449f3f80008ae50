//! Fuzzes the parser of headers, sections, notes, symbol tables and debug links of an ELF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| innoscope_fuzz::elf::run(data));
