//! `.gnu_debugdata` ("`MiniDebugInfo`"): a small ELF file with the names of all functions, compressed by xz.

use std::path::Path;
use std::sync::Arc;

use super::elf::ElfFile;
use super::limits::DEBUGDATA as MAX_UNPACKED;

const STREAM_HEADER: usize = 12;

/// Decompress the ELF file in `.gnu_debugdata`. Return `None` if there is no such section, and an error with
/// the reason if it is malformed.
pub(super) fn inner(elf: &ElfFile) -> Option<Result<Arc<ElfFile>, String>> {
    let section = elf.section(".gnu_debugdata")?;
    let unpacked = unpack(&section.data);
    Some(unpacked.and_then(|data| {
        let name = format!("{}(.gnu_debugdata)", elf.path().display());
        ElfFile::from_bytes(data, Path::new(&name)).map_err(|error| error.reason)
    }))
}

fn unpack(xz: &[u8]) -> Result<Vec<u8>, String> {
    let size = unpacked_size(xz).ok_or("not a complete xz stream")?;
    if size > MAX_UNPACKED {
        return Err(format!("it would unpack to {size} bytes"));
    }
    let mut data = Vec::with_capacity(size as usize);
    let mut input = xz;
    lzma_rs::xz_decompress(&mut input, &mut data).map_err(|error| error.to_string())?;
    Ok(data)
}

/// Return the sum of the unpacked sizes of all chunks. The sum is checked before decompression, because the
/// decompressor itself has no limit. The sizes are read from the chunks, because the decompressor does not use
/// the index.
fn unpacked_size(xz: &[u8]) -> Option<u64> {
    let header = xz.get(..STREAM_HEADER)?;
    let check_size = match header.strip_prefix(b"\xfd7zXZ\0")?.get(1)? {
        0 => 0,
        1 => 4,
        4 => 8,
        10 => 32,
        _ => return None,
    };
    let mut at = STREAM_HEADER;
    let mut total = 0;
    loop {
        // A zero in place of the size of a block header marks the start of the index.
        let words = usize::from(*xz.get(at)?);
        if words == 0 {
            return Some(total);
        }
        // A second filter could expand the output of the first, and the size of the expanded output is not
        // recorded.
        if xz.get(at + 1)? & 0x03 != 0 {
            return None;
        }
        at += (words + 1) * 4;
        let (size, end) = block_size(xz, at)?;
        total += size;
        at = end.next_multiple_of(4) + check_size;
    }
}

/// Return the unpacked size of the LZMA2 data that begins at `at`, and the offset of its end.
fn block_size(xz: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut total = 0;
    loop {
        let control = *xz.get(at)?;
        if control == 0 {
            return Some((total, at + 1));
        }
        let word = |skip: usize| {
            let bytes = xz.get(at + skip..)?.first_chunk()?;
            Some(usize::from(u16::from_be_bytes(*bytes)) + 1)
        };
        let (header, unpacked, packed) = match control {
            1 | 2 => (3, word(1)?, word(1)?),
            0x80.. => {
                let new_properties = usize::from(control >= 0xc0);
                let high = usize::from(control & 0x1f) << 16;
                (5 + new_properties, high + word(1)?, word(3)?)
            }
            _ => return None,
        };
        total += unpacked as u64;
        at += header + packed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xz(data: &[u8]) -> Vec<u8> {
        let mut packed = Vec::new();
        lzma_rs::xz_compress(&mut &*data, &mut packed).unwrap();
        packed
    }

    #[test]
    fn computes_the_size_before_unpacking() {
        for size in [1, 65_535, 65_536, 65_537, 300_000] {
            let data = vec![7; size];
            let packed = xz(&data);
            assert_eq!(unpacked_size(&packed), Some(size as u64));
            assert_eq!(unpack(&packed).unwrap(), data);
            assert!(unpack(&packed[..packed.len() / 2]).is_err());
        }
    }

    #[test]
    fn refuses_a_second_filter() {
        let mut packed = xz(&[7; 100]);
        packed[STREAM_HEADER + 1] |= 1;
        assert_eq!(unpack(&packed).unwrap_err(), "not a complete xz stream");
    }

    #[test]
    fn refuses_a_decompression_bomb() {
        let packed = xz(&vec![0; (MAX_UNPACKED + 1) as usize]);
        let reason = unpack(&packed).unwrap_err();
        assert_eq!(reason, "it would unpack to 20971521 bytes");
    }
}
