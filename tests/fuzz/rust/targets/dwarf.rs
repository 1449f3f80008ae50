//! Fuzzes the parser of types and inlined calls from debug information.
#![no_main]

use std::path::Path;

use _native::layout;
use _native::symbols::{ElfFile, Inlines};
use innoscope_fuzz::within_limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    within_limits(|| {
        let Ok(elf) = ElfFile::from_bytes(data.to_vec(), Path::new("fuzzed")) else {
            return;
        };
        let paths = [
            "global.value",
            "global.next.next.value",
            "global.slots[*]",
            "counter_t.slots[2].value",
        ];
        let _ = layout::members(&elf, &paths.map(str::to_owned));
        if let Ok(inlines) = Inlines::new(&elf, None) {
            for segment in elf.load_segments().iter().take(4) {
                for step in 0..16 {
                    let _ = inlines.frames(segment.vaddr.wrapping_add(step * 16));
                }
            }
        }
    });
});
