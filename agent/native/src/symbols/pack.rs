//! Symbol packs: what the debug file of one build knows, small enough to be copied to every host that runs it.
//!
//! docs/symbols.md has the format. A pack is read by root beside production data, so it is read whole and once,
//! believed only if its owner may be, and nothing in it is taken without its length being checked.

use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::{env, error, fmt};

use object::read::{CompressedData, CompressionFormat};

use super::bytes::Bytes;
use super::crc::crc32;
use super::elf::{ElfFile, hex};
use super::rawtable::RawTable;
use super::{opening, pack_symbols};

/// The number of the format that is written and read.
pub const FORMAT: u32 = 1;
/// Where a host's packs are; `INNOSCOPE_SYMBOLS` in the environment names another folder.
const FOLDER: &str = "/etc/innoscope/symbols.d";
const MAGIC: [u8; 8] = *b"INNOSYM\0";
const HEADER: usize = 96;
const MAX_ID: usize = 64;
/// Bytes of a pack, and of what is in it. A server with 80,000 functions takes a quarter of them.
const MAX_PACKED: u64 = 8 << 20;
pub(super) const MAX_UNPACKED: u64 = 32 << 20;
/// Bytes of a part that is JSON, which takes many times as many once it is read.
const MAX_TEXT: u64 = 1 << 20;

/// Why a pack is not used.
#[derive(Clone, Debug)]
pub struct PackError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, in words.
    pub reason: String,
    /// The next command, where there is one.
    pub remedy: Option<String>,
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "symbol pack {}: {}", self.path.display(), self.reason)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, " ({remedy})"))
    }
}

impl error::Error for PackError {}

/// The folder with the packs of this host.
pub fn folder() -> PathBuf {
    env::var_os("INNOSCOPE_SYMBOLS")
        .filter(|set| !set.is_empty())
        .map_or_else(|| FOLDER.into(), PathBuf::from)
}

/// The path that the pack of a build has in a folder.
pub fn path_of(folder: &Path, build_id: &str) -> PathBuf {
    folder.join(format!("{build_id}.pack"))
}

/// A pack whose owner and checksum are right, not unpacked yet.
#[derive(Debug)]
pub struct Sealed {
    path: PathBuf,
    build_id: String,
    unpacked: u64,
    data: Vec<u8>,
}

impl Sealed {
    /// Reads a pack and checks all that can be without unpacking it; some ms.
    ///
    /// # Errors
    /// If it cannot be read, may have been written by somebody else than root or us, or is damaged.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let failed = |reason: String| PackError { path: path.to_owned(), reason, remedy: None };
        let (data, meta) = read(path).map_err(|error| failed(error.to_string()))?;
        if let Some((reason, remedy)) = distrust(&meta, path) {
            return Err(PackError { remedy: Some(remedy), ..failed(reason) });
        }
        Self::parse(data, path).map_err(|reason| PackError {
            remedy: Some("export it anew: innoscope symbols export --help".to_owned()),
            ..failed(reason)
        })
    }

    /// The pack of a build in this folder; `None` where there is none.
    ///
    /// # Errors
    /// As [`Sealed::open`], and if it is of another build than its name says.
    pub fn find(folder: &Path, build_id: &str) -> Option<Result<Self, PackError>> {
        if folder.as_os_str().is_empty() || !is_build_id(build_id) {
            return None;
        }
        let path = path_of(folder, build_id);
        if matches!(path.metadata(), Err(error) if is_missing(&error)) {
            return None;
        }
        Some(Self::open(&path).and_then(|sealed| sealed.of_build(build_id)))
    }

    /// Itself, if it is of this build.
    ///
    /// # Errors
    /// If it is of another one.
    pub fn of_build(self, build_id: &str) -> Result<Self, PackError> {
        if self.build_id == build_id {
            return Ok(self);
        }
        Err(PackError {
            reason: format!("is of another build: of {}, not of {build_id}", self.build_id),
            remedy: Some(format!("a pack is of one build: export that of {build_id}")),
            path: self.path,
        })
    }

    /// The content of a file, which is not asked whose it is.
    pub(super) fn parse(data: Vec<u8>, path: &Path) -> Result<Self, String> {
        let header: &[u8; HEADER] = data.first_chunk().ok_or("is no symbol pack, or was cut off")?;
        if !header.starts_with(&MAGIC) {
            return Err("is no symbol pack".to_owned());
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        if word(8) != FORMAT {
            return Err(format!("has format {}, and this Innoscope reads format {FORMAT}", word(8)));
        }
        if u64::from(word(16)) != data.len() as u64 {
            return Err(format!("was cut off or added to: {} bytes of {}", data.len(), word(16)));
        }
        if word(12) != crc32(&data[16..]) {
            return Err("is damaged: its checksum is wrong".to_owned());
        }
        let (unpacked, id_size) = (u64::from(word(20)), word(24) as usize);
        if unpacked > MAX_UNPACKED {
            return Err(format!("is damaged: it would take {unpacked} bytes"));
        }
        let id = header[28..].get(..id_size).filter(|id| (1..=MAX_ID).contains(&id.len()));
        let build_id = hex(id.ok_or("is damaged: it has no build-id")?);
        Ok(Self { path: path.to_owned(), build_id, unpacked, data })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The build that it is of, in lower-case hex.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// Unpacks and checks everything; some tens of ms for a server.
    ///
    /// # Errors
    /// If what is in it is not what a pack has.
    pub fn unpack(self) -> Result<Pack, PackError> {
        self.contents().map_err(|reason| PackError {
            path: self.path.clone(),
            reason: format!("is damaged: {reason}"),
            remedy: Some("export it anew: innoscope symbols export --help".to_owned()),
        })
    }

    fn contents(&self) -> Result<Pack, String> {
        let packed = CompressedData {
            format: CompressionFormat::Zlib,
            data: &self.data[HEADER..],
            uncompressed_size: self.unpacked,
        };
        let payload = packed.decompress().map_err(|error| error.to_string())?.into_owned();
        let payload = Bytes::from(payload);
        let [about, layout, symbols, strings] = parts(&payload)?;
        let decoded = pack_symbols::decode(&symbols, &strings)?;
        Ok(Pack {
            path: self.path.clone(),
            build_id: self.build_id.clone(),
            bytes: self.data.len() as u64,
            unpacked: self.unpacked,
            about,
            layout,
            functions: decoded.functions,
            variables: decoded.variables,
            symbols: decoded.entries.into(),
            strings,
        })
    }
}

/// A pack, unpacked and checked.
#[derive(Debug)]
pub struct Pack {
    /// Where it is.
    pub path: PathBuf,
    /// The build that it is of, in lower-case hex.
    pub build_id: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of what is in it.
    pub unpacked: u64,
    /// JSON: who made it, of what.
    pub about: Bytes,
    /// JSON: where members and variables lie.
    pub layout: Bytes,
    /// Functions, aliases counted.
    pub functions: usize,
    /// Variables.
    pub variables: usize,
    symbols: Bytes,
    strings: Bytes,
}

impl Pack {
    /// The names, as if they were in a file.
    pub(super) fn table(&self) -> RawTable {
        pack_symbols::table(self.symbols.clone(), self.strings.clone())
    }
}

/// What a pack of this file is to hold, not compressed. `about` and `layout` are taken as they are.
///
/// # Errors
/// In words, if the file has no symbols or more than a pack takes.
pub fn payload(elf: &ElfFile, about: &[u8], layout: &[u8]) -> Result<Vec<u8>, String> {
    let (symbols, strings) = pack_symbols::encode(elf)?;
    let parts = [about, layout, &symbols, &strings];
    let mut data = Vec::with_capacity(16 + parts.iter().map(|part| part.len()).sum::<usize>());
    for part in parts {
        let size = u32::try_from(part.len()).map_err(|_| "it has too many symbols for a pack".to_owned())?;
        data.extend(size.to_le_bytes());
    }
    for part in parts {
        data.extend_from_slice(part);
    }
    if data.len() as u64 > MAX_UNPACKED {
        return Err(format!("its symbols take {} bytes, a pack at most {MAX_UNPACKED}", data.len()));
    }
    Ok(data)
}

/// The file of a payload that was compressed (zlib) from `unpacked` bytes.
///
/// # Errors
/// In words, if it is too large or the build-id (hex) is none.
pub fn seal(build_id: &str, compressed: &[u8], unpacked: usize) -> Result<Vec<u8>, String> {
    let size = HEADER + compressed.len();
    if size as u64 > MAX_PACKED || unpacked as u64 > MAX_UNPACKED {
        return Err(format!("{size} bytes, {unpacked} unpacked, are too many for a pack"));
    }
    let id = unhex(build_id).ok_or_else(|| format!("not a build-id: {build_id}"))?;
    let mut data = MAGIC.to_vec();
    for word in [FORMAT, 0, size as u32, unpacked as u32, id.len() as u32] {
        data.extend(word.to_le_bytes());
    }
    data.extend(id);
    data.resize(HEADER, 0);
    data.extend_from_slice(compressed);
    let checksum = crc32(&data[16..]);
    data[12..16].copy_from_slice(&checksum.to_le_bytes());
    Ok(data)
}

/// The pack of a build in this folder, unpacked; `None` where there is none.
///
/// # Errors
/// As [`Sealed::find`] and [`Sealed::unpack`].
pub fn find(folder: &Path, build_id: &str) -> Option<Result<Pack, PackError>> {
    Sealed::find(folder, build_id).map(|sealed| sealed.and_then(Sealed::unpack))
}

fn parts(payload: &Bytes) -> Result<[Bytes; 4], String> {
    let sizes: &[u8; 16] = payload.first_chunk().ok_or("it has no list of parts")?;
    let mut at = 16_u64;
    let mut next = |index: usize| {
        let size = u64::from(u32::from_le_bytes([0, 1, 2, 3].map(|i| sizes[4 * index + i])));
        let part = payload.part(at, size).ok_or_else(|| format!("part {index} is cut off"));
        at += size;
        part
    };
    let parts = [next(0)?, next(1)?, next(2)?, next(3)?];
    if at != payload.len() as u64 {
        return Err("something follows its parts".to_owned());
    }
    if parts[..2].iter().any(|text| text.len() as u64 > MAX_TEXT) {
        return Err("its descriptions are too long".to_owned());
    }
    Ok(parts)
}

/// The bytes of a regular file, never more than a pack has.
fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let file = opening::regular(path)?;
    let meta = file.metadata()?;
    let mut data = Vec::new();
    file.take(MAX_PACKED + 1).read_to_end(&mut data)?;
    if data.len() as u64 > MAX_PACKED {
        return Err(io::Error::other(format!("larger than {MAX_PACKED} bytes: no symbol pack")));
    }
    Ok((data, meta))
}

/// Why nobody should believe a file of this owner and mode, and what to do about it.
fn distrust(meta: &Metadata, path: &Path) -> Option<(String, String)> {
    const OTHERS_WRITE: u32 = 0o022;
    // SAFETY: has no arguments and cannot fail.
    let ours = unsafe { libc::geteuid() };
    let path = path.display();
    if meta.uid() != 0 && meta.uid() != ours {
        let reason = format!("belongs to user {}, neither to root nor to us", meta.uid());
        return Some((reason, format!("if it is right: chown root: {path}")));
    }
    if meta.mode() & OTHERS_WRITE != 0 {
        let reason = format!("others may write to it (mode {:04o})", meta.mode() & 0o7777);
        return Some((reason, format!("if it is right: chmod go-w {path}")));
    }
    None
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// It becomes a part of a path.
fn is_build_id(text: &str) -> bool {
    unhex(text).is_some_and(|id| (1..=MAX_ID).contains(&id.len()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())
}
