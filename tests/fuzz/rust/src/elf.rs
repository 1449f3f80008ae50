//! The parser of headers, sections, notes, symbol tables and debug links of an ELF file.

use std::path::Path;

use _native::references;
use _native::symbols::{ElfFile, load_own};

use super::within_limits;

const SECTIONS: [&str; 6] = [
    ".text",
    ".eh_frame",
    ".eh_frame_hdr",
    ".gnu_debuglink",
    ".debug_info",
    ".rodata",
];
const MAX_LOOKUPS: usize = 64;

/// Parse an ELF file and look up symbols in it.
pub fn run(data: &[u8]) {
    within_limits(|| {
        let Ok(elf) = ElfFile::from_bytes(data.to_vec(), Path::new("fuzzed")) else {
            return;
        };
        for name in SECTIONS {
            let _ = elf.section(name).map(|section| section.data.len());
        }
        let _ = (
            elf.build_id(),
            elf.debuglink(),
            elf.debugaltlink(),
            elf.machine(),
            elf.entry(),
        );
        let _ = (elf.loaded_sections(), elf.relocated_symbols());
        let table = load_own(&elf);
        for segment in elf.load_segments().iter().take(MAX_LOOKUPS) {
            for address in [
                segment.vaddr,
                segment.vaddr.wrapping_add(data.len() as u64 / 2),
            ] {
                let _ = table.lookup(address);
            }
        }
        let _ = table.find_many(&["server_version", "main"]);
        let functions = table.named(&["m".to_owned(), "_Z".to_owned(), "server_".to_owned()]);
        let addresses: Vec<u64> = functions
            .iter()
            .map(|one| one.address)
            .take(MAX_LOOKUPS)
            .collect();
        let _ = table.variables_at(&addresses);
        let ranges: Vec<(u64, u64)> = functions
            .iter()
            .map(|one| (one.address, one.size))
            .take(MAX_LOOKUPS)
            .collect();
        let _ = references::count(&elf, &ranges);
    });
}
