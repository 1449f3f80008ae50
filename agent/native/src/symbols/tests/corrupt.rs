//! Tests that a malformed file costs at most some symbol names: no panics and no excessive CPU time.

use std::path::Path;

use super::fixture::{COUNT, Fixture};
use super::sources::add_debugdata;
use crate::symbols::{DebugSearch, ElfFile, Inlines, Source, load};

/// Maximum CPU time for one malformed file, in ns.
pub const MAX_NS: i64 = 50_000_000;

/// A small deterministic random number generator (xorshift64).
pub struct Random(pub u64);

impl Random {
    /// Return a number from 0 to `limit` - 1.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Return the CPU time of this thread in ns. Unlike wall-clock time, it does not depend on the load of the
/// machine.
pub fn cpu_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn use_everything(data: Vec<u8>, random: &mut Random) {
    let Ok(elf) = ElfFile::from_bytes(data, Path::new("damaged")) else {
        return;
    };
    let table = load(&elf, Path::new("/damaged"), &DebugSearch::default());
    for _ in 0..8 {
        let _ = table.lookup(random.below(0x6000) as u64);
    }
    let _ = table.find(COUNT);
    let _ = (elf.build_id(), elf.debuglink(), elf.debugaltlink());
    for name in [".text", ".eh_frame", ".eh_frame_hdr", ".debug_info"] {
        let _ = elf.section(name).map(|section| section.data.len());
    }
}

fn corrupted(original: &[u8], round: usize, random: &mut Random) -> Vec<u8> {
    let mut data = original.to_vec();
    let headers = 64 + 13 * 56;
    match round % 4 {
        0 => data.truncate(random.below(original.len())),
        1 => data[random.below(headers)] = random.below(256) as u8,
        // The section headers are at the end of the file.
        2 => data[original.len() - 1 - random.below(2048)] = random.below(256) as u8,
        _ => data[random.below(original.len())] ^= 1 << random.below(8),
    }
    data
}

fn assert_no_panic(original: &[u8], rounds: usize) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..rounds {
        let data = corrupted(original, round, &mut random);
        let start = cpu_ns();
        use_everything(data, &mut random);
        let took = cpu_ns() - start;
        assert!(took < MAX_NS, "round {round} took {took} ns");
    }
}

#[test]
fn malformed_files_with_symtab_do_not_panic() {
    let fixture = Fixture::new(&["-gz=zlib"]);
    assert_no_panic(&std::fs::read(fixture.at("prog")).unwrap(), 15_000);
}

#[test]
fn malformed_files_with_debugdata_do_not_panic() {
    let fixture = Fixture::new(&[]);
    add_debugdata(&fixture);
    assert_no_panic(&std::fs::read(fixture.at("with-mini")).unwrap(), 5_000);
}

#[test]
fn malformed_dwarf_does_not_panic() {
    let fixture = Fixture::new(&["-gz=none"]);
    let original = std::fs::read(fixture.at("prog")).unwrap();
    let mut random = Random(7);
    let (address, size) = fixture.load("prog").find(COUNT).unwrap();
    for _ in 0..2_000 {
        let mut data = original.clone();
        for _ in 0..4 {
            data[random.below(original.len())] = random.below(256) as u8;
        }
        let Ok(elf) = ElfFile::from_bytes(data, Path::new("damaged")) else {
            continue;
        };
        let start = cpu_ns();
        if let Ok(inlines) = Inlines::new(&elf, None) {
            for at in (address..address + size).step_by(4) {
                let _ = inlines.frames(at);
            }
        }
        assert!(cpu_ns() - start < 10 * MAX_NS);
    }
}

#[test]
fn unwind_tables_are_found_without_section_headers() {
    let fixture = Fixture::new(&[]);
    let whole = fixture.open("prog");
    let mut data = std::fs::read(fixture.at("prog")).unwrap();
    // e_shoff, e_shnum and e_shstrndx
    data[0x28..0x30].fill(0);
    data[0x3c..0x40].fill(0);
    let elf = ElfFile::from_bytes(data, Path::new("x")).unwrap();
    let header = elf.section(".eh_frame_hdr").unwrap();
    let expected = whole.section(".eh_frame_hdr").unwrap();
    assert_eq!(header.svma, expected.svma);
    assert_eq!(*header.data, *expected.data);
    let frames = elf.section(".eh_frame").unwrap();
    let expected = whole.section(".eh_frame").unwrap();
    assert_eq!(frames.svma.start, expected.svma.start);
    assert!(frames.data.starts_with(&expected.data));
    let text = elf.section(".text").unwrap();
    assert!(text.svma.contains(&elf.entry()));
    assert_eq!(elf.build_id(), whole.build_id());
    let table = load(&elf, Path::new("/x"), &DebugSearch::default());
    assert_eq!(table.source, Source::None);
}
