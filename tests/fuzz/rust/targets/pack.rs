//! Fuzzes symbol packs: whole packs with a corrected checksum, and fuzzed payloads in a well-formed pack.
#![no_main]

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use _native::symbols::pack::{Sealed, seal};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use innoscope_fuzz::within_limits;
use libfuzzer_sys::fuzz_target;

const BUILD_ID: &str = "00112233445566778899aabbccddeeff00112233";
/// The bytes of the header that contain the checksum of all bytes after them.
const CHECKSUM: std::ops::Range<usize> = 12..16;

fn path() -> &'static PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        std::env::temp_dir().join(format!("innoscope-fuzz-{}.pack", std::process::id()))
    })
}

fn with_checksum(mut data: Vec<u8>) -> Vec<u8> {
    if data.len() > CHECKSUM.end {
        let checksum = crc32fast::hash(&data[CHECKSUM.end..]);
        data[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
    data
}

fn around(content: &[u8]) -> Option<Vec<u8>> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(content).ok()?;
    seal(BUILD_ID, &packed.finish().ok()?, content.len()).ok()
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let pack = if kind & 1 == 0 {
        Some(with_checksum(rest.to_vec()))
    } else {
        around(rest)
    };
    let Some(pack) = pack else {
        return;
    };
    std::fs::write(path(), pack).expect("the folder of temporary files is writable");
    within_limits(|| {
        if let Ok(sealed) = Sealed::open(path()) {
            let _ = sealed.unpack();
        }
    });
});
