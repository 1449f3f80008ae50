//! Reads the required parts of one ELF file into memory; see [`Content`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::{error, fmt, io};

use memmap2::Mmap;
use object::elf;

use super::bytes::{Bytes, Content};
use super::crc::Crc;
use super::headers::{Headers, SectionRecord, Segment};
use super::rawtable::RawTable;
use super::{limits, opening, sections};

/// The reason why a file cannot be used as an ELF object.
#[derive(Debug)]
pub struct ElfError {
    /// The path of the file.
    pub path: PathBuf,
    /// A message with the reason.
    pub reason: String,
    /// The `errno` if a system call failed, `None` if the content is invalid.
    pub errno: Option<i32>,
}

impl ElfError {
    fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into(), errno: None }
    }

    fn system(path: &Path, error: &io::Error) -> Self {
        Self { path: path.to_owned(), reason: error.to_string(), errno: error.raw_os_error() }
    }
}

impl fmt::Display for ElfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl error::Error for ElfError {}

/// The addresses and the bytes of a section.
#[derive(Clone, Debug)]
pub struct Section {
    /// The ELF virtual addresses; `0..0` for a section that occupies no memory at run time.
    pub svma: Range<u64>,
    /// The decompressed content.
    pub data: Bytes,
}

/// A section that occupies memory while the program runs (`SHF_ALLOC`).
#[derive(Debug)]
pub struct LoadedSection<'file> {
    /// The first ELF virtual address.
    pub start: u64,
    /// True if the section is executable.
    pub code: bool,
    part: Range<u64>,
    content: &'file Content,
}

impl LoadedSection<'_> {
    /// Read the section in pieces of `step` bytes. Call `visit` with the offset of each piece, and with the piece,
    /// extended by the `overlap` bytes that follow it.
    pub fn scan(&self, step: u64, overlap: u64, visit: impl FnMut(u64, &[u8])) {
        // An error means that the file was truncated. The missing part is treated as empty.
        let _ = self.content.scan(self.part.clone(), step, overlap, visit);
    }
}

/// An ELF file of any machine. All methods are safe on a malformed file, and on one that its owner is
/// truncating or rewriting: parts that cannot be read count as missing, and parts that were read do not
/// change.
#[derive(Debug)]
pub struct ElfFile {
    path: PathBuf,
    content: Content,
    headers: Headers,
    /// Why a section was not read; only the first one.
    refused: OnceLock<String>,
}

/// Identifies a file and its version: device, inode, size, and ctime.
type Identity = (u64, u64, u64, i64, i64);

/// Open files by identity and name.
type OpenFiles = HashMap<(Identity, PathBuf), Weak<ElfFile>>;

/// All open files, shared so that a file used by several servers is in memory only once.
static OPEN: Mutex<Option<OpenFiles>> = Mutex::new(None);

impl ElfFile {
    /// Open the file at `path`.
    ///
    /// # Errors
    /// Returns an error with an `errno` if the file cannot be opened, and one without if it is not a regular ELF file.
    pub fn open(path: &Path) -> Result<Arc<Self>, ElfError> {
        let file = opening::regular(path).map_err(|error| ElfError::system(path, &error))?;
        Self::from_file(file, path)
    }

    /// Read an open file. `display` is its name in messages and results.
    ///
    /// # Errors
    /// The errors of [`ElfFile::open`].
    pub fn from_file(file: File, display: &Path) -> Result<Arc<Self>, ElfError> {
        let size = checked_size(&file, display)?;
        let meta = file.metadata().map_err(|error| ElfError::system(display, &error))?;
        let identity = (meta.dev(), meta.ino(), size, meta.ctime(), meta.ctime_nsec());
        let key = (identity, display.to_owned());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let open = open.get_or_insert_default();
        if let Some(known) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let elf = Self::new(Content::of_file(file, size), display)?;
        open.retain(|_, other| other.strong_count() > 0);
        open.insert(key, Arc::downgrade(&elf));
        Ok(elf)
    }

    /// Map an open file. This is only for the confined child, which may be killed by SIGBUS if the file is
    /// truncated.
    ///
    /// # Errors
    /// The errors of [`ElfFile::open`].
    pub fn map(file: &File, display: &Path) -> Result<Arc<Self>, ElfError> {
        checked_size(file, display)?;
        // SAFETY: the mapping is private and read-only. If the file is truncated, SIGBUS ends this process,
        // whose only task is to read this file.
        let map = unsafe { Mmap::map(file) }.map_err(|error| ElfError::system(display, &error))?;
        Self::new(Content::Whole(Bytes::from_map(map)), display)
    }

    /// Read an ELF image from memory, such as the vDSO.
    ///
    /// # Errors
    /// Returns an error if the image is not an ELF file.
    pub fn from_bytes(data: Vec<u8>, display: &Path) -> Result<Arc<Self>, ElfError> {
        Self::new(Content::Whole(Bytes::from(data)), display)
    }

    fn new(content: Content, display: &Path) -> Result<Arc<Self>, ElfError> {
        let headers = Headers::read(&content).map_err(|reason| ElfError::content(display, reason))?;
        Ok(Arc::new(Self { path: display.to_owned(), content, headers, refused: OnceLock::new() }))
    }

    /// Return the name under which the file was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Return the open file; None if the content was mapped or read from memory.
    pub fn file(&self) -> Option<&File> {
        match &self.content {
            Content::File { file, .. } => Some(file),
            Content::Whole(_) => None,
        }
    }

    /// Read `size` bytes at this offset, or fewer at the end of the file.
    pub fn read(&self, offset: u64, size: u64) -> Option<Bytes> {
        self.content.read_uncached(offset, size.min(self.content.size().checked_sub(offset)?))
    }

    /// Return how many bytes of this file are held in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.content.memory_bytes()
    }

    /// Compute the CRC32 of the whole file. Return `None` if the file exceeds the limit or was truncated in
    /// the meantime.
    pub(super) fn crc(&self) -> Option<u32> {
        const PIECE: u64 = 1 << 20;
        let size = self.content.size();
        if size > limits::CRC {
            return None;
        }
        let mut crc = Crc::default();
        self.content.scan(0..size, PIECE, 0, |_, bytes| crc.add(bytes))?;
        Some(crc.value())
    }

    /// Return true if the content came from [`ElfFile::from_bytes`] rather than from a file.
    pub fn is_in_memory(&self) -> bool {
        self.file().is_none() && !self.content.is_confined()
    }

    /// Return the name of the file's machine: `x86_64`, `aarch64`, a few others, or `unknown`.
    pub fn machine(&self) -> &'static str {
        self.headers.machine
    }

    /// Return the ELF virtual address of the entry point.
    pub fn entry(&self) -> u64 {
        self.headers.entry
    }

    /// Return the problem with the headers, or else with a section that was to be read, if any.
    pub fn problem(&self) -> Option<&str> {
        self.headers.problem.as_ref().or(self.refused.get()).map(String::as_str)
    }

    /// Return the loadable segments (`PT_LOAD`), in file order.
    pub fn load_segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    /// Return the GNU build-id in lower-case hex.
    pub fn build_id(&self) -> Option<String> {
        sections::build_id(&self.headers, &self.content).map(|id| hex(&id))
    }

    /// Return the section with this name, or `None` if it has no bytes in this file (like most sections of a
    /// debug file).
    ///
    /// The section is read once and cached; a compressed section is decompressed on each call. If the section
    /// headers are missing or malformed, `.eh_frame_hdr`, `.eh_frame` and `.text` are found through the
    /// program headers.
    pub fn section(&self, name: &str) -> Option<Section> {
        match sections::by_name(&self.headers, &self.content, name) {
            Ok(Some(section)) => return Some(section),
            Ok(None) => {}
            Err(reason) => {
                self.refused.get_or_init(|| format!("{name}: {reason}"));
            }
        }
        sections::by_segment(&self.headers, &self.content, name)
    }

    /// Return the start address of a section without reading its content.
    pub fn section_start(&self, name: &str) -> Option<u64> {
        self.headers.find(name).map(|section| section.address).or_else(|| match name {
            ".text" => self.headers.segments.iter().find(|segment| segment.executable).map(|one| one.vaddr),
            ".eh_frame_hdr" => self.headers.eh_frame_hdr.map(|header| header.vaddr),
            _ => None,
        })
    }

    /// Return the file name and CRC32 of the separate debug file from `.gnu_debuglink`.
    pub fn debuglink(&self) -> Option<(String, u32)> {
        let data = self.section(".gnu_debuglink")?.data;
        let data = &data[..data.len().min(limits::LINK)];
        let end = data.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&data[..end]).ok()?.to_owned();
        let crc = data.get((end / 4 + 1) * 4..)?.first_chunk::<4>()?;
        Some((name, u32::from_le_bytes(*crc)))
    }

    /// Return the path and the build-id (raw bytes) of the shared debug file from `.gnu_debugaltlink` (dwz).
    pub fn debugaltlink(&self) -> Option<(String, Vec<u8>)> {
        let data = self.section(".gnu_debugaltlink")?.data;
        let data = &data[..data.len().min(limits::LINK)];
        let end = data.iter().position(|byte| *byte == 0)?;
        let path = std::str::from_utf8(&data[..end]).ok()?.to_owned();
        Some((path, data.get(end + 1..)?.to_vec()))
    }

    /// Open the file to which `dwz` moved the debug information shared by several files, if its build-id
    /// matches. `opened_as` is the path of this file. If it is below `/proc/PID/root`, the shared file must be
    /// there too.
    pub fn shared_debug_file(&self, opened_as: &Path) -> Option<Arc<Self>> {
        let (path, id) = self.debugaltlink()?;
        let shared = Self::open(&opening::follow(opened_as, Path::new(&path))).ok()?;
        (shared.build_id() == Some(hex(&id))).then_some(shared)
    }

    /// Return true if there is a `.symtab`.
    pub fn has_symtab(&self) -> bool {
        self.headers.find_kind(elf::SHT_SYMTAB).is_some()
    }

    /// Return true if there is a `.dynsym` with content; the `.dynsym` of a debug file is empty.
    pub fn has_dynsym(&self) -> bool {
        self.headers.find_kind(elf::SHT_DYNSYM).is_some()
    }

    /// Return true if there is DWARF debug information (`.debug_info`).
    pub fn has_debug_info(&self) -> bool {
        self.headers.find(".debug_info").is_some() || self.headers.find(".zdebug_info").is_some()
    }

    /// Return true if there is a compressed symbol table (`.gnu_debugdata`).
    pub fn has_debugdata(&self) -> bool {
        self.headers.find(".gnu_debugdata").is_some()
    }

    /// List the sections that occupy memory while the program runs, except `.dynsym`. Return `None` if their
    /// total size exceeds the limit, which no real server reaches.
    pub fn loaded_sections(&self) -> Option<Vec<LoadedSection<'_>>> {
        let loaded = self.headers.sections.iter().filter(|section| {
            section.has_flag(elf::SHF_ALLOC)
                && section.kind != elf::SHT_NOBITS.0
                && section.kind != elf::SHT_DYNSYM.0
        });
        let loaded: Vec<_> = loaded
            .map(|section| {
                let part = section.offset..section.offset.saturating_add(section.size);
                let code = section.has_flag(elf::SHF_EXECINSTR);
                LoadedSection { start: section.address, code, part, content: &self.content }
            })
            .collect();
        let bytes = loaded.iter().fold(0_u64, |sum, one| sum.saturating_add(one.part.end - one.part.start));
        (bytes <= limits::SCANNED).then_some(loaded)
    }

    /// List the addresses of the symbols that this file's dynamic relocations refer to, with one entry per
    /// relocation.
    pub fn relocated_symbols(&self) -> Vec<u64> {
        const ENTRY: usize = 24;
        let Ok(Some(symbols)) = RawTable::read(self, elf::SHT_DYNSYM) else {
            return Vec::new();
        };
        let tables = self.headers.sections.iter().filter(|section| section.kind == elf::SHT_RELA.0);
        let mut found = Vec::new();
        let mut left = limits::FILE_BYTES;
        for table in tables {
            // No server has more relocations than this limit allows.
            let Some(rest) = left.checked_sub(table.size) else { break };
            left = rest;
            let Some(table) = self.content.read_uncached(table.offset, table.size) else { continue };
            let (entries, _) = table.as_chunks::<ENTRY>();
            let symbol = |entry: &[u8; ENTRY]| {
                symbols.symbol(u32::from_le_bytes([entry[12], entry[13], entry[14], entry[15]]))
            };
            found
                .extend(entries.iter().filter_map(symbol).map(|symbol| symbol.address).filter(|at| *at != 0));
        }
        found
    }

    pub(super) fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Return the bytes of a section as stored in the file, without decompressing them.
    pub(super) fn raw(&self, section: &SectionRecord) -> Option<Bytes> {
        self.content.part(section.offset, section.size)
    }
}

fn checked_size(file: &File, display: &Path) -> Result<u64, ElfError> {
    match opening::check(file).map_err(|error| ElfError::system(display, &error))? {
        0 => Err(ElfError::content(display, "the file is empty")),
        size => Ok(size),
    }
}

/// Format bytes as lower-case hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_running_test_executable() {
        let path = std::env::current_exe().unwrap();
        let elf = ElfFile::open(&path).unwrap();
        assert_eq!(elf.machine(), std::env::consts::ARCH);
        assert!(elf.has_symtab());
        assert!(elf.load_segments().iter().any(|s| s.executable));
        let text = elf.section(".text").unwrap();
        assert!(text.svma.contains(&elf.entry()));
        assert_eq!(text.data.len() as u64, text.svma.end - text.svma.start);
        assert!(elf.section(".no_such_section").is_none());
    }

    #[test]
    fn refuses_files_that_are_not_elf_with_a_reason() {
        let error = ElfFile::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.to_string(), "/dev/null: not a regular file");
        let error = ElfFile::open(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.errno, Some(libc::ENOENT));
        let error = ElfFile::from_bytes(b"#!/bin/sh\n".to_vec(), Path::new("x")).unwrap_err();
        assert_eq!(error.to_string(), "x: not an ELF file");
    }
}
