//! Finds the bytes of a section, using its section header or else the program headers, and decompresses them
//! if needed.

use std::ops::Range;

use object::elf;
use object::read::{CompressedData, CompressionFormat};

use super::bytes::{Bytes, Content};
use super::elf::Section;
use super::headers::{Headers, SectionRecord, SpecialSegment};
use super::limits;

/// `DW_EH_PE_pcrel | DW_EH_PE_sdata4`: the only encoding that linkers use for the pointer to `.eh_frame`.
const PCREL_SDATA4: u8 = 0x1b;

/// Read the section with this name, using its section header. Return `None` if it has none, or no bytes.
///
/// # Errors
/// Returns the reason if a compressed section would be too large.
pub(super) fn by_name(headers: &Headers, file: &Content, name: &str) -> Result<Option<Section>, String> {
    if let Some(record) = headers.find(name) {
        return read(record, file);
    }
    let old_style = name.strip_prefix(".debug_").map(|rest| format!(".zdebug_{rest}"));
    let record = old_style.and_then(|name| headers.find(&name));
    let raw = record.and_then(|record| file.part(record.offset, record.size));
    let packed = raw.as_deref().and_then(packed_zdebug);
    let data = packed.map_or(Ok(None), |packed| inflate(&packed, file))?;
    Ok(data.map(|data| Section { svma: 0..0, data }))
}

fn read(record: &SectionRecord, file: &Content) -> Result<Option<Section>, String> {
    let Some(raw) = file.part(record.offset, record.size) else { return Ok(None) };
    let data = if record.has_flag(elf::SHF_COMPRESSED) {
        packed(&raw, file).map_or(Ok(None), |packed| inflate(&packed, file))?
    } else {
        Some(raw)
    };
    let Some(end) = record.address.checked_add(record.size) else { return Ok(None) };
    let svma = if record.address == 0 { 0..0 } else { record.address..end };
    Ok(data.map(|data| Section { svma, data }))
}

/// Find the compressed data after an `Elf64_Chdr`: u32 type, u32 reserved, u64 size, u64 alignment.
fn packed<'data>(raw: &'data [u8], file: &Content) -> Option<CompressedData<'data>> {
    let kind = u32::from_le_bytes(*raw.first_chunk()?);
    let uncompressed_size = u64::from_le_bytes(*raw.get(8..)?.first_chunk()?);
    let format = match kind {
        1 => CompressionFormat::Zlib,
        // This decompressor allocates as much memory as the data requests, so use it only if the process's
        // memory is limited.
        2 if file.is_confined() => CompressionFormat::Zstandard,
        _ => return None,
    };
    Some(CompressedData { format, data: raw.get(24..)?, uncompressed_size })
}

/// Find the data in the format that was used before `SHF_COMPRESSED`: "ZLIB", the size as a big-endian u64,
/// then the data.
fn packed_zdebug(raw: &[u8]) -> Option<CompressedData<'_>> {
    let rest = raw.strip_prefix(b"ZLIB")?;
    let uncompressed_size = u64::from_be_bytes(*rest.first_chunk()?);
    Some(CompressedData { format: CompressionFormat::Zlib, data: rest.get(8..)?, uncompressed_size })
}

/// Decompress into a buffer of the size that the section claims, if that size is plausible.
fn inflate(packed: &CompressedData, file: &Content) -> Result<Option<Bytes>, String> {
    let max = if file.is_confined() { limits::UNPACKED_CONFINED } else { limits::UNPACKED };
    let believable = limits::RATIO_FREE.max((packed.data.len() as u64).saturating_mul(limits::RATIO));
    if packed.uncompressed_size > max.min(believable) {
        return Err(format!("it would unpack to {} bytes", packed.uncompressed_size));
    }
    Ok(packed.decompress().ok().map(|data| Bytes::from(data.into_owned())))
}

/// Find a section that unwinding needs, using the program headers.
///
/// This is not used for a debug file, whose program headers still describe the file it was split from.
pub(super) fn by_segment(headers: &Headers, file: &Content, name: &str) -> Option<Section> {
    if headers.is_left_out(name) {
        return None;
    }
    match name {
        ".eh_frame_hdr" => eh_frame_hdr(headers, file),
        ".eh_frame" => eh_frame(headers, file),
        ".text" => {
            let segment = headers.segments.iter().find(|s| s.executable)?;
            Some(Section { svma: segment.svma(), data: file.part(segment.offset, segment.filesz)? })
        }
        _ => None,
    }
}

fn eh_frame_hdr(headers: &Headers, file: &Content) -> Option<Section> {
    let SpecialSegment { vaddr, offset, size } = headers.eh_frame_hdr?;
    Some(Section { svma: vaddr..vaddr.checked_add(size)?, data: file.part(offset, size)? })
}

/// Find `.eh_frame` by the pointer in `.eh_frame_hdr`. Its end is unknown, but a zero length terminates it.
fn eh_frame(headers: &Headers, file: &Content) -> Option<Section> {
    let header = eh_frame_hdr(headers, file)?;
    let (&[version, encoding, _, _], rest) = header.data.split_first_chunk()?;
    if version != 1 || encoding != PCREL_SDATA4 {
        return None;
    }
    let relative = i32::from_le_bytes(*rest.first_chunk()?);
    let start = (header.svma.start.checked_add(4)?).checked_add_signed(relative.into())?;
    let segment = headers.segments.iter().find(|s| s.svma().contains(&start))?;
    let skipped = start - segment.vaddr;
    let size = segment.filesz.checked_sub(skipped)?;
    Some(Section {
        svma: start..start.checked_add(size)?,
        data: file.part(segment.offset.checked_add(skipped)?, size)?,
    })
}

/// Read the raw build-id from the note sections or, if they contain none, from the note segments.
///
/// Sections are tried first, because the segments of a debug file may still describe the file it was split
/// from.
pub(super) fn build_id(headers: &Headers, file: &Content) -> Option<Vec<u8>> {
    let sections = headers.sections.iter();
    let sections = sections.filter(|s| s.kind == elf::SHT_NOTE.0);
    let sections = sections.map(|s| (s.offset, s.size));
    let segments = headers.notes.iter().map(|s| (s.offset, s.size));
    sections
        .chain(segments)
        .filter(|(_, size)| *size <= limits::NOTES)
        .take(limits::NOTE_COUNT)
        .filter_map(|(offset, size)| file.read_uncached(offset, size))
        .find_map(|notes| build_id_in(&notes).map(<[u8]>::to_vec))
}

/// Return the content of the `GNU` note of type 3 (NT_GNU_BUILD_ID), if it has at most 64 bytes.
fn build_id_in(mut notes: &[u8]) -> Option<&[u8]> {
    for _ in 0..limits::NOTE_COUNT {
        let header = notes.first_chunk::<12>()?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i])) as usize;
        let (name_size, size, kind) = (word(0), word(4), word(8));
        let name: Range<usize> = 12..12_usize.checked_add(name_size)?;
        let start = name.end.checked_next_multiple_of(4)?;
        let value = start..start.checked_add(size)?;
        if kind == 3 && notes.get(name)? == b"GNU\0" && (1..=64).contains(&size) {
            return notes.get(value);
        }
        notes = notes.get(value.end.checked_next_multiple_of(4)?..)?;
    }
    None
}
