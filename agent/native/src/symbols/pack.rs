//! Symbol packs: the symbols and layouts of one build's debug file, small enough to be copied to every host
//! that runs the build.
//!
//! docs/symbols.md describes the format. Packs are read as root on production hosts. Therefore a pack is read
//! completely and only once, it is trusted only if its owner and mode allow it, and every length in it is
//! checked before use.

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

/// The version of the format that is written and read.
pub const FORMAT: u32 = 1;
/// The directory with this host's packs; the environment variable `INNOSCOPE_SYMBOLS` overrides it.
const FOLDER: &str = "/etc/innoscope/symbols.d";
const MAGIC: [u8; 8] = *b"INNOSYM\0";
const HEADER: usize = 96;
const MAX_ID: usize = 64;
/// Maximum size of a pack, in bytes. A server with 80,000 functions needs a quarter of this limit.
const MAX_PACKED: u64 = 8 << 20;
/// Maximum size of an unpacked pack, in bytes. A server with 80,000 functions needs a quarter of this limit.
pub(super) const MAX_UNPACKED: u64 = 32 << 20;
/// Maximum size of a JSON part, in bytes. Parsed JSON takes many times as much memory.
const MAX_TEXT: u64 = 1 << 20;

/// The reason why a pack is not used.
#[derive(Clone, Debug)]
pub struct PackError {
    /// The file.
    pub path: PathBuf,
    /// A message with the reason.
    pub reason: String,
    /// The command that fixes the problem, if there is one.
    pub remedy: Option<String>,
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "symbol pack {}: {}", self.path.display(), self.reason)?;
        self.remedy.as_ref().map_or(Ok(()), |remedy| write!(f, " ({remedy})"))
    }
}

impl error::Error for PackError {}

/// Return the directory with this host's packs.
pub fn folder() -> PathBuf {
    env::var_os("INNOSCOPE_SYMBOLS")
        .filter(|set| !set.is_empty())
        .map_or_else(|| FOLDER.into(), PathBuf::from)
}

/// Return the path of a build's pack in a directory.
pub fn path_of(folder: &Path, build_id: &str) -> PathBuf {
    folder.join(format!("{build_id}.pack"))
}

/// A pack whose owner and checksum are valid, before it is unpacked.
#[derive(Debug)]
pub struct Sealed {
    path: PathBuf,
    build_id: String,
    unpacked: u64,
    data: Vec<u8>,
}

impl Sealed {
    /// Read a pack and check everything that can be checked without unpacking it. This takes a few ms.
    ///
    /// # Errors
    /// Returns an error if the pack cannot be read, is malformed, or may have been written by a user other than
    /// root or the current user.
    pub fn open(path: &Path) -> Result<Self, PackError> {
        let failed = |reason: String| PackError { path: path.to_owned(), reason, remedy: None };
        let (data, meta) = read(path).map_err(|error| failed(error.to_string()))?;
        if let Some((reason, remedy)) = untrusted_because(&meta, path) {
            return Err(PackError { remedy: Some(remedy), ..failed(reason) });
        }
        Self::parse(data, path).map_err(|reason| PackError {
            remedy: Some("export it again: innoscope symbols export --help".to_owned()),
            ..failed(reason)
        })
    }

    /// Open the pack of a build in this directory; return `None` if it does not exist.
    ///
    /// # Errors
    /// Those of [`Sealed::open`], and an error if the pack belongs to a different build from the one in its file name.
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

    /// Return the pack itself if it belongs to this build.
    ///
    /// # Errors
    /// Returns an error if the pack belongs to another build.
    pub fn of_build(self, build_id: &str) -> Result<Self, PackError> {
        if self.build_id == build_id {
            return Ok(self);
        }
        Err(PackError {
            reason: format!("is for another build: it has build-id {}, not {build_id}", self.build_id),
            remedy: Some(format!("export a pack of build {build_id}")),
            path: self.path,
        })
    }

    /// Parse a pack without checking its owner.
    pub(super) fn parse(data: Vec<u8>, path: &Path) -> Result<Self, String> {
        let header: &[u8; HEADER] = data.first_chunk().ok_or("is not a symbol pack, or is truncated")?;
        if !header.starts_with(&MAGIC) {
            return Err("is not a symbol pack".to_owned());
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        if word(8) != FORMAT {
            return Err(format!("has format {}, but this Innoscope reads format {FORMAT}", word(8)));
        }
        if u64::from(word(16)) != data.len() as u64 {
            return Err(format!("has the wrong size: {} bytes instead of {}", data.len(), word(16)));
        }
        if word(12) != crc32(&data[16..]) {
            return Err("is damaged: its checksum is wrong".to_owned());
        }
        let (unpacked, id_size) = (u64::from(word(20)), word(24) as usize);
        if unpacked > MAX_UNPACKED {
            return Err(format!("is damaged: it would unpack to {unpacked} bytes"));
        }
        let id = header[28..].get(..id_size).filter(|id| (1..=MAX_ID).contains(&id.len()));
        let build_id = hex(id.ok_or("is damaged: it has no build-id")?);
        Ok(Self { path: path.to_owned(), build_id, unpacked, data })
    }

    /// Return the pack's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Return the build-id in lower-case hex.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// Unpack the pack and check all of its content. This takes tens of ms for a server.
    ///
    /// # Errors
    /// Returns an error if the content is malformed.
    pub fn unpack(self) -> Result<Pack, PackError> {
        self.contents().map_err(|reason| PackError {
            path: self.path.clone(),
            reason: format!("is damaged: {reason}"),
            remedy: Some("export it again: innoscope symbols export --help".to_owned()),
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

/// An unpacked and checked pack.
#[derive(Debug)]
pub struct Pack {
    /// The pack's path.
    pub path: PathBuf,
    /// The build-id in lower-case hex.
    pub build_id: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Size of the unpacked content in bytes.
    pub unpacked: u64,
    /// JSON with the creator of the pack and the files that it was made from.
    pub about: Bytes,
    /// JSON with the locations of members and variables.
    pub layout: Bytes,
    /// Number of functions, including aliases.
    pub functions: usize,
    /// Number of variables.
    pub variables: usize,
    symbols: Bytes,
    strings: Bytes,
}

impl Pack {
    /// Return the symbols in the form of a symbol table.
    pub(super) fn table(&self) -> RawTable {
        pack_symbols::table(self.symbols.clone(), self.strings.clone())
    }
}

/// Build the uncompressed payload of a pack for this file. `about` and `layout` are included unchanged.
///
/// # Errors
/// The reason, if the file has no symbols or more than a pack can hold.
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
        return Err(format!("its symbols need {} bytes; the limit is {MAX_UNPACKED}", data.len()));
    }
    Ok(data)
}

/// Build a pack from a zlib-compressed payload whose uncompressed size is `unpacked` bytes.
///
/// # Errors
/// The reason, if the pack is too large or the build-id (hex) is malformed.
pub fn seal(build_id: &str, compressed: &[u8], unpacked: usize) -> Result<Vec<u8>, String> {
    let size = HEADER + compressed.len();
    if size as u64 > MAX_PACKED || unpacked as u64 > MAX_UNPACKED {
        return Err(format!("a pack cannot have {size} bytes, {unpacked} unpacked: too large"));
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

/// Open and unpack the pack of a build in this directory; return `None` if it does not exist.
///
/// # Errors
/// Those of [`Sealed::find`] and [`Sealed::unpack`].
pub fn find(folder: &Path, build_id: &str) -> Option<Result<Pack, PackError>> {
    Sealed::find(folder, build_id).map(|sealed| sealed.and_then(Sealed::unpack))
}

fn parts(payload: &Bytes) -> Result<[Bytes; 4], String> {
    let sizes: &[u8; 16] = payload.first_chunk().ok_or("it has no list of parts")?;
    let mut at = 16_u64;
    let mut next = |index: usize| {
        let size = u64::from(u32::from_le_bytes([0, 1, 2, 3].map(|i| sizes[4 * index + i])));
        let part = payload.part(at, size).ok_or_else(|| format!("part {index} is truncated"));
        at += size;
        part
    };
    let parts = [next(0)?, next(1)?, next(2)?, next(3)?];
    if at != payload.len() as u64 {
        return Err("there is extra data after its parts".to_owned());
    }
    if parts[..2].iter().any(|text| text.len() as u64 > MAX_TEXT) {
        return Err("its descriptions are too long".to_owned());
    }
    Ok(parts)
}

/// Read a regular file, up to the maximum size of a pack; return its content and metadata.
fn read(path: &Path) -> io::Result<(Vec<u8>, Metadata)> {
    let file = opening::regular(path)?;
    let meta = file.metadata()?;
    let mut data = Vec::new();
    file.take(MAX_PACKED + 1).read_to_end(&mut data)?;
    if data.len() as u64 > MAX_PACKED {
        return Err(io::Error::other(format!("larger than a symbol pack can be ({MAX_PACKED} bytes)")));
    }
    Ok((data, meta))
}

/// Return why a file with this owner and mode must not be trusted, and the remedy.
fn untrusted_because(meta: &Metadata, path: &Path) -> Option<(String, String)> {
    const OTHERS_WRITE: u32 = 0o022;
    // SAFETY: geteuid has no arguments and cannot fail.
    let ours = unsafe { libc::geteuid() };
    let path = path.display();
    if meta.uid() != 0 && meta.uid() != ours {
        let reason = format!("is owned by user {}, not by root or the current user", meta.uid());
        return Some((reason, format!("if you trust it: chown root: {path}")));
    }
    if meta.mode() & OTHERS_WRITE != 0 {
        let reason = format!("is writable by others (mode {:04o})", meta.mode() & 0o7777);
        return Some((reason, format!("if you trust it: chmod go-w {path}")));
    }
    None
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// Return true for a well-formed build-id. The check matters because build-ids become parts of paths.
fn is_build_id(text: &str) -> bool {
    unhex(text).is_some_and(|id| (1..=MAX_ID).contains(&id.len()))
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).filter(|_| !byte.is_ascii_uppercase());
    let byte = |pair: &[u8; 2]| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8);
    pairs.iter().map(byte).collect::<Option<_>>().filter(|_| rest.is_empty())
}
