//! Fuzzes the demangling of function names from a symbol table.
#![no_main]

use _native::symbols::demangle;
use innoscope_fuzz::within_limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(name) = std::str::from_utf8(data) else {
        return;
    };
    within_limits(|| {
        let _ = demangle(name);
        let _ = demangle(&format!("_Z{name}"));
    });
});
