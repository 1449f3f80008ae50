//! Reads one ELF symbol table directly in the file's format.

use std::ffi::CStr;

use object::elf;
use rustc_hash::FxHashSet;

use super::bytes::Bytes;
use super::elf::ElfFile;
use super::limits;

/// The size of `Elf64_Sym`.
const ENTRY: usize = 24;
const SHN_UNDEF: u16 = 0;
const SHN_ABS: u16 = 0xfff1;
const VERSION_HIDDEN: u16 = 0x8000;

/// The fields of one symbol of a 64-bit little-endian file.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawSymbol {
    pub name: u32,
    pub info: u8,
    pub section: u16,
    pub address: u64,
    pub size: u64,
}

/// The binding of a symbol, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Binding {
    Global,
    Weak,
    Local,
}

impl RawSymbol {
    fn parse(entry: &[u8; ENTRY]) -> Self {
        let [n0, n1, n2, n3, info, _, s0, s1, value @ ..] = *entry;
        let word = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| value[at + i]));
        Self {
            name: u32::from_le_bytes([n0, n1, n2, n3]),
            info,
            section: u16::from_le_bytes([s0, s1]),
            address: word(0),
            size: word(8),
        }
    }

    /// Encode the symbol in the format that [`RawSymbol::parse`] reads.
    pub fn bytes(self) -> [u8; ENTRY] {
        let mut entry = [0; ENTRY];
        entry[..4].copy_from_slice(&self.name.to_le_bytes());
        entry[4] = self.info;
        entry[6..8].copy_from_slice(&self.section.to_le_bytes());
        entry[8..16].copy_from_slice(&self.address.to_le_bytes());
        entry[16..].copy_from_slice(&self.size.to_le_bytes());
        entry
    }

    fn kind(self) -> elf::SymbolType {
        elf::SymbolType(self.info & 0xf)
    }

    pub fn binding(self) -> Binding {
        match elf::SymbolBind(self.info >> 4) {
            elf::STB_LOCAL => Binding::Local,
            elf::STB_WEAK => Binding::Weak,
            _ => Binding::Global,
        }
    }

    fn is_defined(self) -> bool {
        self.section != SHN_UNDEF && self.section != SHN_ABS
    }

    /// Return true for an IFUNC resolver, which chooses an implementation at load time.
    pub fn is_resolver(self) -> bool {
        self.kind() == elf::STT_GNU_IFUNC
    }

    /// Return true for a function or variable that this file defines, except thread-local variables.
    pub fn is_definition(self) -> bool {
        self.is_defined()
            && match self.kind() {
                elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_OBJECT => true,
                elf::STT_NOTYPE => self.size > 0,
                _ => false,
            }
    }
}

/// A filter for names: the first bytes of all wanted names or prefixes, cut to the length of the shortest
/// one.
pub(super) struct PrefixFilter<'name> {
    length: usize,
    prefixes: FxHashSet<&'name [u8]>,
}

impl<'name> PrefixFilter<'name> {
    /// Maximum number of bytes that are compared. Comparing more bytes would exclude few additional names.
    const MAX_LENGTH: usize = 12;

    pub fn of(names: impl Iterator<Item = &'name str> + Clone) -> Self {
        let length = names.clone().map(str::len).min().unwrap_or(0).min(Self::MAX_LENGTH);
        Self { length, prefixes: names.map(|name| &name.as_bytes()[..length]).collect() }
    }
}

/// A symbol table and its strings.
#[derive(Debug)]
pub(super) struct RawTable {
    symbols: Bytes,
    strings: Bytes,
    versions: Option<Bytes>,
    /// For each section number, true if the section contains code.
    code: Vec<bool>,
}

impl RawTable {
    /// Read the `.symtab` or `.dynsym` of a file: return `Ok(None)` if the file has none, and the reason if
    /// it is malformed.
    pub fn read(elf: &ElfFile, kind: elf::SectionType) -> Result<Option<Self>, String> {
        let headers = elf.headers();
        let Some(section) = headers.find_kind(kind) else {
            return Ok(None);
        };
        if !headers.is_elf64_le {
            return Err("its symbols are not 64 bit and little-endian".to_owned());
        }
        if section.entry_size != ENTRY as u64 {
            return Err("its symbol table is malformed (size of an entry)".to_owned());
        }
        let strings = headers.sections.get(section.link as usize);
        let strings = strings.filter(|s| s.kind == elf::SHT_STRTAB.0);
        if section.size / ENTRY as u64 > limits::SYMBOLS {
            return Err(format!("it has more than {} symbols", limits::SYMBOLS));
        }
        if strings.is_some_and(|s| s.size > limits::STRINGS) {
            return Err(format!("the names of its symbols take more than {} bytes", limits::STRINGS));
        }
        let code = headers.sections.iter();
        Ok(Some(Self {
            symbols: elf.raw(section).ok_or("its symbol table is truncated")?,
            strings: strings
                .and_then(|s| elf.raw(s))
                .ok_or("the strings of its symbol table are malformed or truncated")?,
            versions: (kind == elf::SHT_DYNSYM)
                .then(|| headers.find_kind(elf::SHT_GNU_VERSYM))
                .flatten()
                .and_then(|s| elf.raw(s)),
            code: code.map(|s| s.has_flag(elf::SHF_EXECINSTR)).collect(),
        }))
    }

    /// Create a table without an ELF file, from `Elf64_Sym` entries, their strings, and a list that states for
    /// each section whether it contains code.
    pub fn of(symbols: Bytes, strings: Bytes, code: Vec<bool>) -> Self {
        Self { symbols, strings, versions: None, code }
    }

    /// Iterate over all symbols in file order, as (index, symbol).
    pub fn symbols(&self) -> impl Iterator<Item = (u32, RawSymbol)> {
        let (entries, _) = self.symbols.as_chunks::<ENTRY>();
        (0..).zip(entries.iter().map(RawSymbol::parse))
    }

    /// Return the symbol with this index.
    pub fn symbol(&self, index: u32) -> Option<RawSymbol> {
        let (entries, _) = self.symbols.as_chunks::<ENTRY>();
        entries.get(index as usize).map(RawSymbol::parse)
    }

    /// Return the number of bytes of memory that the table uses.
    pub fn memory_bytes(&self) -> u64 {
        (self.symbols.len() + self.strings.len()) as u64
    }

    /// Return the number of entries.
    pub fn len(&self) -> usize {
        self.symbols.len() / ENTRY
    }

    /// Return true if the symbol is a function that this file defines. A symbol without a type must have a
    /// size and be in a section with code.
    pub fn is_function(&self, symbol: RawSymbol) -> bool {
        let in_code = || self.code.get(usize::from(symbol.section)) == Some(&true);
        symbol.is_defined()
            && match symbol.kind() {
                elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
                elf::STT_NOTYPE => symbol.size > 0 && in_code(),
                _ => false,
            }
    }

    /// Return true if the name may be one of the wanted names. This is much faster than reading the name.
    pub fn may_match(&self, symbol: RawSymbol, filter: &PrefixFilter) -> bool {
        let Some(tail) = self.strings.get(symbol.name as usize..) else {
            return false;
        };
        tail.get(..filter.length).is_some_and(|head| filter.prefixes.contains(head))
    }

    /// Return the name without its version (`@GLIBC_2.2.5`); return `None` if it is empty, malformed or too
    /// long.
    pub fn name(&self, symbol: RawSymbol) -> Option<&str> {
        let name = self.full_name(symbol)?;
        let end = name.find('@').unwrap_or(name.len());
        (end > 0).then(|| &name[..end])
    }

    /// Return the name without its version if it has at most `max` bytes. No further bytes are read.
    pub fn short_name(&self, symbol: RawSymbol, max: usize) -> Option<&str> {
        let window = self.window(symbol, max.saturating_add(1))?;
        let end = window.iter().position(|byte| matches!(byte, 0 | b'@'))?;
        str::from_utf8(&window[..end]).ok().filter(|name| !name.is_empty())
    }

    /// Return the name including its version, if any; return `None` if it is malformed or too long.
    pub fn full_name(&self, symbol: RawSymbol) -> Option<&str> {
        let window = self.window(symbol, limits::NAME)?;
        CStr::from_bytes_until_nul(window).ok()?.to_str().ok()
    }

    /// Return up to `max` bytes from the start of a name. The limit matters because names can overlap, and
    /// many symbols can share one long name.
    fn window(&self, symbol: RawSymbol, max: usize) -> Option<&[u8]> {
        let tail = self.strings.get(symbol.name as usize..)?;
        Some(&tail[..tail.len().min(max)])
    }

    /// Return true if the symbol has an old version (`@`, not `@@`), which the linker does not use for new
    /// programs. `name` is the name without the version.
    pub fn is_old_version(&self, index: u32, symbol: RawSymbol, name: &str) -> bool {
        let version = self.versions.as_deref().and_then(|all| {
            let (words, _) = all.as_chunks::<2>();
            words.get(index as usize).map(|w| u16::from_le_bytes(*w))
        });
        if let Some(version) = version {
            return version & VERSION_HIDDEN != 0;
        }
        let after = self.strings.get(symbol.name as usize..).and_then(|tail| tail.get(name.len()..));
        after.is_some_and(|after| after.starts_with(b"@") && !after.starts_with(b"@@"))
    }
}
