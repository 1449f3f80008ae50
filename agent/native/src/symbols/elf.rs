//! One ELF file, mapped, and the few things we want from it.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{error, fmt, io};

use memmap2::Mmap;
use object::elf;

use super::bytes::Bytes;
use super::headers::{Headers, SectionRecord, Segment};
use super::rawtable::RawTable;
use super::sections;

/// Why a file cannot be used as an ELF object.
#[derive(Debug)]
pub struct ElfError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it, in words.
    pub reason: String,
    /// The `errno` where the operating system refused, `None` where the content is at fault.
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

/// A section: where it is in memory and its bytes.
#[derive(Clone, Debug)]
pub struct Section {
    /// ELF virtual addresses; empty at 0 for a section that is not loaded.
    pub svma: Range<u64>,
    /// The content, decompressed.
    pub data: Bytes,
}

/// A section that is loaded with its content.
#[derive(Clone, Debug)]
pub struct LoadedSection {
    /// First ELF virtual address.
    pub start: u64,
    /// Whether it is executable.
    pub code: bool,
    /// The content.
    pub data: Bytes,
}

/// A mapped ELF file of any machine. All methods are safe on a damaged file: what cannot be read is not there.
///
/// The file must not be truncated while it is mapped (package managers replace files and never do that).
#[derive(Debug)]
pub struct ElfFile {
    path: PathBuf,
    data: Bytes,
    headers: Headers,
    in_memory: bool,
}

impl ElfFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// With an `errno` if it cannot be opened or mapped, without one if it is not a regular file or not ELF.
    pub fn open(path: &Path) -> Result<Arc<Self>, ElfError> {
        // O_NONBLOCK: a pipe that lies where a debug file should be must not block us.
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(|error| ElfError::system(path, &error))?;
        Self::from_file(&file, path)
    }

    /// Maps an open file; `display` is the name it has in messages and results.
    ///
    /// # Errors
    /// As [`ElfFile::open`].
    pub fn from_file(file: &File, display: &Path) -> Result<Arc<Self>, ElfError> {
        let system = |error: &io::Error| ElfError::system(display, error);
        let meta = file.metadata().map_err(|error| system(&error))?;
        if !meta.is_file() {
            return Err(ElfError::content(display, "not a regular file"));
        }
        if meta.len() == 0 {
            return Err(ElfError::content(display, "the file is empty"));
        }
        // SAFETY: the mapping is private and read-only; see the type's note about truncation.
        let map = unsafe { Mmap::map(file) }.map_err(|error| system(&error))?;
        Self::new(Bytes::from_map(map), display, false)
    }

    /// Takes an ELF image that is in memory, such as the vdso.
    ///
    /// # Errors
    /// If it is not ELF.
    pub fn from_bytes(data: Vec<u8>, display: &Path) -> Result<Arc<Self>, ElfError> {
        Self::new(Bytes::from(data), display, true)
    }

    fn new(data: Bytes, display: &Path, in_memory: bool) -> Result<Arc<Self>, ElfError> {
        let headers = Headers::read(&data).map_err(|reason| ElfError::content(display, reason))?;
        Ok(Arc::new(Self { path: display.to_owned(), data, headers, in_memory }))
    }

    /// The name it was opened as.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole file.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    /// Whether it came from memory ([`ElfFile::from_bytes`]) and not from a file.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// The machine it is for: `x86_64`, `aarch64`, a few others, or `unknown`.
    pub fn machine(&self) -> &'static str {
        self.headers.machine
    }

    /// The ELF virtual address where execution begins.
    pub fn entry(&self) -> u64 {
        self.headers.entry
    }

    /// What is wrong with the headers, if anything.
    pub fn problem(&self) -> Option<&str> {
        self.headers.problem.as_deref()
    }

    /// The parts that are mapped into memory, in file order.
    pub fn load_segments(&self) -> &[Segment] {
        &self.headers.segments
    }

    /// The GNU build-id in lower-case hex.
    pub fn build_id(&self) -> Option<String> {
        sections::build_id(&self.headers, &self.data).map(|id| hex(&id))
    }

    /// The section of this name, or `None` if it has no bytes in this file (as most have none in a debug file).
    ///
    /// A compressed section is decompressed, at each call. `.eh_frame_hdr`, `.eh_frame` and `.text` are also found
    /// by the program headers where the section headers are missing or damaged.
    pub fn section(&self, name: &str) -> Option<Section> {
        sections::by_name(&self.headers, &self.data, name)
            .or_else(|| sections::by_segment(&self.headers, &self.data, name))
    }

    /// File name and CRC32 of the separate debug file, as `.gnu_debuglink` has them.
    pub fn debuglink(&self) -> Option<(String, u32)> {
        let data = self.section(".gnu_debuglink")?.data;
        let end = data.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&data[..end]).ok()?.to_owned();
        let crc = data.get((end / 4 + 1) * 4..)?.first_chunk::<4>()?;
        Some((name, u32::from_le_bytes(*crc)))
    }

    /// Path and build-id (raw bytes) of the file of shared debug information, as `.gnu_debugaltlink` (dwz) has them.
    pub fn debugaltlink(&self) -> Option<(String, Vec<u8>)> {
        let data = self.section(".gnu_debugaltlink")?.data;
        let end = data.iter().position(|byte| *byte == 0)?;
        let path = std::str::from_utf8(&data[..end]).ok()?.to_owned();
        Some((path, data.get(end + 1..)?.to_vec()))
    }

    /// Whether there is a `.symtab`.
    pub fn has_symtab(&self) -> bool {
        self.headers.find_kind(elf::SHT_SYMTAB).is_some()
    }

    /// Whether there is a `.dynsym` (with bytes: the one of a debug file has none).
    pub fn has_dynsym(&self) -> bool {
        self.headers.find_kind(elf::SHT_DYNSYM).is_some()
    }

    /// Whether there is DWARF debug information (`.debug_info`).
    pub fn has_debug_info(&self) -> bool {
        self.headers.find(".debug_info").is_some() || self.headers.find(".zdebug_info").is_some()
    }

    /// Whether there is a compressed table of symbols (`.gnu_debugdata`).
    pub fn has_debugdata(&self) -> bool {
        self.headers.find(".gnu_debugdata").is_some()
    }

    /// The sections that are loaded with their content, without the table of exported symbols.
    pub fn loaded_sections(&self) -> Vec<LoadedSection> {
        let loaded = self.headers.sections.iter().filter(|section| {
            section.has_flag(elf::SHF_ALLOC)
                && section.kind != elf::SHT_NOBITS.0
                && section.kind != elf::SHT_DYNSYM.0
        });
        loaded
            .filter_map(|section| {
                let code = section.has_flag(elf::SHF_EXECINSTR);
                Some(LoadedSection { start: section.address, code, data: self.raw(section)? })
            })
            .collect()
    }

    /// The addresses of the file's own symbols that its dynamic relocations name, once for each relocation.
    pub fn relocated_symbols(&self) -> Vec<u64> {
        const ENTRY: usize = 24;
        let Ok(Some(symbols)) = RawTable::read(self, elf::SHT_DYNSYM) else {
            return Vec::new();
        };
        let tables = self.headers.sections.iter().filter(|section| section.kind == elf::SHT_RELA.0);
        let mut found = Vec::new();
        for table in tables.filter_map(|section| self.raw(section)) {
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

    /// The bytes of a section as they are in the file.
    pub(super) fn raw(&self, section: &SectionRecord) -> Option<Bytes> {
        self.data.part(section.offset, section.size)
    }
}

/// Lower-case hex digits.
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
    fn reads_this_very_executable() {
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
    fn refuses_what_is_not_elf_with_a_reason() {
        let error = ElfFile::open(Path::new("/dev/null")).unwrap_err();
        assert_eq!(error.to_string(), "/dev/null: not a regular file");
        let error = ElfFile::open(Path::new("/nonexistent")).unwrap_err();
        assert_eq!(error.errno, Some(libc::ENOENT));
        let error = ElfFile::from_bytes(b"#!/bin/sh\n".to_vec(), Path::new("x")).unwrap_err();
        assert_eq!(error.to_string(), "x: not an ELF file");
    }
}
