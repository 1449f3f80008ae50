//! Runs fuzz targets of tests/fuzz/rust on mutated seeds, with the same limits of time and memory, but without
//! coverage guidance, which would need an instrumented build of the core.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::{env, fs};

// The targets have the style of their own crate.
#[rustfmt::skip]
#[allow(clippy::pedantic)]
#[path = "../../../tests/fuzz/rust/src/lib.rs"]
mod fuzz;

/// The random seed: every run has the same inputs, if the seeds are the same.
const RANDOM: u64 = 0x9e37_79b9_7f4a_7c15;
/// Maximum number of changes in one input.
const CHANGES: usize = 8;
/// Values that are often limits, in 64 bits.
const EXTREMES: [u64; 6] = [0, 1, 0x7f, 0x8080_8080_8080_8080, i64::MAX as u64, u64::MAX];

/// A random number generator (xorshift64*).
struct Random(u64);

impl Random {
    /// Return a number from 0 to `limit` - 1.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) as usize % limit.max(1)
    }

    /// Return a position in `size` bytes. Most positions are near the start or the end, where headers are.
    fn position(&mut self, size: usize) -> usize {
        let scale = self.below(17);
        let distance = self.below(1 << scale).min(size.saturating_sub(1));
        if self.below(2) == 0 { distance } else { size.saturating_sub(1 + distance) }
    }
}

/// Return a mutated copy: bytes are changed, overwritten with extreme values, copied, or removed from the end.
fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..=random.below(CHANGES) {
        let at = random.position(data.len());
        let rest = &mut data[at..];
        match random.below(16) {
            0 => data.truncate(at),
            1..4 => {
                let size = random.below(64).min(rest.len());
                let from = random.below(data.len() - size);
                data.copy_within(from..from + size, at);
            }
            4..9 => {
                let size = (1 << random.below(4)).min(rest.len());
                let value = EXTREMES[random.below(EXTREMES.len())];
                rest[..size].copy_from_slice(&value.to_le_bytes()[..size]);
            }
            _ => rest.iter_mut().take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
    data
}

/// Run a target on `count` inputs. `folder` contains a folder of seeds for each target. An input that fails is
/// written to a folder beside it.
fn run(folder: &Path, target: &str, count: usize, work: fn(&[u8])) {
    let files = fs::read_dir(folder.join(target)).expect("a folder with seeds");
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).expect("a file")).collect();
    let mut random = Random(RANDOM);
    for number in 0..count {
        let input = mutated(&seeds[number % seeds.len()], &mut random);
        if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| work(&input))) {
            let failed = folder.with_file_name("failed").join(target);
            fs::create_dir_all(&failed).expect("a writable folder");
            let saved = failed.join(format!("mutated-{number}"));
            fs::write(&saved, &input).expect("a writable folder");
            eprintln!("{target}: input {number} of random seed {RANDOM:#x} failed: {}", saved.display());
            panic::resume_unwind(panic);
        }
    }
}

#[test]
#[ignore = "tests/fuzz/test_fuzz.py makes the seeds and runs this test"]
fn mutated_seeds_exceed_no_limit() {
    let seeds = env::var_os("INNOSCOPE_FUZZ_SEEDS").expect("the variable INNOSCOPE_FUZZ_SEEDS");
    let folder = Path::new(&seeds);
    run(folder, "elf", 100_000, fuzz::elf::run);
    run(folder, "unwind", 200_000, fuzz::unwind::run);
    run(folder, "pack", 30_000, fuzz::pack::run);
}
