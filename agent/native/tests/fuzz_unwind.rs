//! Tests that unwinding never panics and never takes more than 50 ms, even with random registers, random
//! stacks or corrupted unwind tables.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use _native::modules::Modules;
use _native::snapshot::Registers;
use _native::symbols::ElfFile;
use _native::unwind::{End, Unwinder};

const MAX_TIME: Duration = Duration::from_millis(50);
const BIAS: u64 = 0x7f00_0000_0000;
const STACK_BASE: u64 = 0x7ffd_0000_1000;

/// A random number generator (xorshift64*) that returns the same numbers in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Return the CPU time of this thread. Unlike wall-clock time, it does not depend on the load of the machine.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer points to a local timespec, which outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn libc_path() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own maps");
    let line = maps
        .lines()
        .find(|line| line.contains("/libc.so") || line.contains("/libc-"))
        .expect("libc is mapped");
    line[line.find('/').expect("a path")..].to_owned()
}

/// Return a word that looks like a code address, looks like a stack address, or is random.
fn random_word(random: &mut Random, code: &std::ops::Range<u64>) -> u64 {
    match random.below(4) {
        0 => random.next(),
        1 => STACK_BASE + random.below(8192),
        _ => code.start + random.below(code.end - code.start),
    }
}

fn walk_random(modules: &Modules, rounds: usize, random: &mut Random) -> usize {
    let mut unwinder = Unwinder::new(modules);
    let module = &modules.all()[0];
    let code = module.start..module.end;
    let mut roots = 0;
    for _ in 0..rounds {
        let registers = Registers {
            ip: random_word(random, &code),
            sp: if random.below(8) == 0 { random.next() } else { STACK_BASE },
            bp: (random.below(2) == 0).then(|| random_word(random, &code)),
            lr: (random.below(2) == 0).then(|| random_word(random, &code)),
        };
        let words = random.below(64) as usize;
        let stack: Vec<u8> = (0..words).flat_map(|_| random_word(random, &code).to_le_bytes()).collect();
        let returns = [(registers.sp.wrapping_add(random.below(64) * 8), random_word(random, &code))];
        let started = cpu_time();
        let walk = unwinder.walk(modules, registers, &stack, &returns);
        let took = cpu_time().saturating_sub(started);
        assert!(took < MAX_TIME, "{took:?} for {registers:x?} over {} bytes", stack.len());
        roots += usize::from(walk.end == End::Root);
    }
    roots
}

#[test]
fn a_million_random_registers_and_stacks() {
    let elf = ElfFile::open(Path::new(&libc_path())).expect("libc");
    let modules = Modules::fixed(vec![(elf, BIAS)]);
    walk_random(&modules, 1_000_000, &mut Random(0x1234_5678_9abc_def1));
}

#[test]
fn mutated_unwind_tables() {
    let image = std::fs::read(libc_path()).expect("libc");
    let whole = ElfFile::from_bytes(image.clone(), Path::new("libc")).expect("libc");
    let mut random = Random(0xfeed_beef_1234_0001);
    for _ in 0..200 {
        let mut mutated = image.clone();
        for name in [".eh_frame", ".eh_frame_hdr"] {
            let section = whole.section(name).expect("libc has unwind tables");
            let at = offset_of(&image, &section.data);
            for _ in 0..random.below(400) {
                let index = at + random.below(section.data.len() as u64) as usize;
                mutated[index] = random.next() as u8;
            }
        }
        let elf: Arc<ElfFile> = ElfFile::from_bytes(mutated, Path::new("libc")).expect("unchanged headers");
        let modules = Modules::fixed(vec![(elf, BIAS)]);
        walk_random(&modules, 1_000, &mut random);
    }
}

/// Return the offset of a section in the image. `part` is a copy of the section, which is found by its
/// content.
fn offset_of(image: &[u8], part: &[u8]) -> usize {
    let head = &part[..part.len().min(256)];
    image.windows(head.len()).position(|window| window == head).expect("part of the image")
}
