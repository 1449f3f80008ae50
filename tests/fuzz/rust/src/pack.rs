//! Symbol packs: whole packs with a corrected checksum, and fuzzed payloads in a well-formed pack.

use std::io::Write as _;

use _native::symbols::pack::{Sealed, seal};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::{with_file, within_limits};

const BUILD_ID: &str = "00112233445566778899aabbccddeeff00112233";
/// The bytes of the header that contain the checksum of all bytes after them.
const CHECKSUM: std::ops::Range<usize> = 12..16;

/// Return a well-formed pack with this payload.
fn around(payload: &[u8]) -> Option<Vec<u8>> {
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(payload).ok()?;
    seal(BUILD_ID, &packed.finish().ok()?, payload.len()).ok()
}

/// Read a pack. The first byte selects whether the rest is a pack or a payload.
///
/// # Panics
/// Panics if a limit is exceeded.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let mut pack = rest.to_vec();
    if kind & 1 != 0 {
        let Some(sealed) = around(rest) else {
            return;
        };
        pack = sealed;
    } else if pack.len() > CHECKSUM.end {
        let checksum = crc32fast::hash(&pack[CHECKSUM.end..]);
        pack[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    }
    with_file(&pack, |path| {
        within_limits(|| {
            if let Ok(sealed) = Sealed::open(path) {
                let _ = sealed.unpack();
            }
        });
    });
}
