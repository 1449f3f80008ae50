//! Fuzzes symbol packs: whole packs with a corrected checksum, and fuzzed payloads in a well-formed pack.
#![no_main]

use std::io::Write as _;

use _native::symbols::pack::{Sealed, seal};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use innoscope_fuzz::{with_file, within_limits};
use libfuzzer_sys::fuzz_target;

const BUILD_ID: &str = "00112233445566778899aabbccddeeff00112233";
/// The bytes of the header that contain the checksum of all bytes after them.
const CHECKSUM: std::ops::Range<usize> = 12..16;

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
    with_file(&pack, |path| {
        within_limits(|| {
            if let Ok(sealed) = Sealed::open(path) {
                let _ = sealed.unpack();
            }
        });
    });
});
