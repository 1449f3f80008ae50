//! Parses the ELF, program and section headers of both classes and byte orders into plain records.

use std::ops::Range;

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind, pod};

use super::bytes::{Bytes, Content};
use super::limits;

/// Size of the 64-bit ELF header, which is larger than the 32-bit one.
const HEADER: u64 = 64;

/// A loadable segment (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The first ELF virtual address.
    pub vaddr: u64,
    /// Size in memory, in bytes.
    pub memsz: u64,
    /// File offset in bytes.
    pub offset: u64,
    /// Size in the file, in bytes; the rest of `memsz` is zero.
    pub filesz: u64,
    /// True if the segment is mapped with execute permission.
    pub executable: bool,
}

impl Segment {
    /// Return the range of ELF virtual addresses.
    pub fn svma(&self) -> Range<u64> {
        self.vaddr..self.vaddr.saturating_add(self.memsz)
    }
}

/// One section header.
#[derive(Clone, Copy, Debug)]
pub(super) struct SectionRecord {
    pub name: u32,
    pub kind: u32,
    pub flags: u64,
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    pub link: u32,
    pub entry_size: u64,
}

impl SectionRecord {
    pub fn has_flag(&self, flag: elf::SectionFlags) -> bool {
        self.flags & flag.0 != 0
    }
}

/// A program header that Innoscope uses besides `PT_LOAD`: its address, file offset and size.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpecialSegment {
    pub vaddr: u64,
    pub offset: u64,
    pub size: u64,
}

/// The content of the headers.
#[derive(Debug)]
pub(super) struct Headers {
    pub machine: &'static str,
    pub entry: u64,
    /// True for 64-bit little-endian, the only format whose symbols are read.
    pub is_elf64_le: bool,
    pub segments: Vec<Segment>,
    pub notes: Vec<SpecialSegment>,
    pub eh_frame_hdr: Option<SpecialSegment>,
    pub sections: Vec<SectionRecord>,
    pub names: Option<Bytes>,
    /// The reason why the file's program or section headers could not be read.
    pub problem: Option<String>,
}

impl Headers {
    /// Read the headers, or return the reason why they cannot be read.
    pub fn read(content: &Content) -> Result<Self, String> {
        let start = content.read_uncached(0, content.size().min(HEADER)).ok_or("cannot be read")?;
        match FileKind::parse(&*start) {
            Ok(FileKind::Elf64) => read_class::<elf::FileHeader64<Endianness>>(&start, content),
            Ok(FileKind::Elf32) => read_class::<elf::FileHeader32<Endianness>>(&start, content),
            _ => Err("not an ELF file".to_owned()),
        }
    }

    /// Return true if the section has this name. This compares no more bytes than `name` has.
    fn is_named(&self, section: &SectionRecord, name: &str) -> bool {
        let names: &[u8] = self.names.as_deref().unwrap_or_default();
        let tail = names.get(section.name as usize..).unwrap_or_default();
        tail.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Find the first section with this name that has bytes in the file.
    pub fn find(&self, name: &str) -> Option<&SectionRecord> {
        self.sections.iter().find(|s| s.kind != elf::SHT_NOBITS.0 && self.is_named(s, name))
    }

    /// Return true if a section with this name has a header but no bytes in the file, like most sections of a
    /// debug file.
    pub fn is_left_out(&self, name: &str) -> bool {
        self.sections.iter().any(|s| s.kind == elf::SHT_NOBITS.0 && self.is_named(s, name))
    }

    /// Find the first section of this type.
    pub fn find_kind(&self, kind: elf::SectionType) -> Option<&SectionRecord> {
        self.sections.iter().find(|s| s.kind == kind.0)
    }
}

fn read_class<E: FileHeader<Endian = Endianness>>(
    start: &[u8],
    content: &Content,
) -> Result<Headers, String> {
    let header = E::parse(start).map_err(|error| error.to_string())?;
    let endian = header.endian().map_err(|error| error.to_string())?;
    let mut headers = Headers {
        machine: machine_name(header.e_machine(endian)),
        entry: header.e_entry(endian).into(),
        is_elf64_le: header.is_type_64() && header.is_little_endian(),
        segments: Vec::new(),
        notes: Vec::new(),
        eh_frame_hdr: None,
        sections: Vec::new(),
        names: None,
        problem: None,
    };
    if let Err(reason) = read_segments(header, endian, content, &mut headers) {
        headers.problem = Some(reason);
    }
    if let Err(reason) = read_sections(header, endian, content, &mut headers) {
        headers.problem = Some(reason);
    }
    Ok(headers)
}

/// Read a table of headers as bytes.
fn table<T: pod::Pod>(
    content: &Content,
    offset: u64,
    entry_size: u16,
    count: usize,
    max: usize,
    what: &str,
) -> Result<Bytes, String> {
    if usize::from(entry_size) != size_of::<T>() {
        return Err(format!("the {what} headers are malformed (size of an entry)"));
    }
    if count > max {
        return Err(format!("it has {count} {what} headers, of which at most {max} are read"));
    }
    let size = (count * size_of::<T>()) as u64;
    content.read_uncached(offset, size).ok_or_else(|| format!("the {what} headers are truncated"))
}

fn entries<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    pod::slice_from_all_bytes(bytes).unwrap_or_default()
}

fn read_segments<E: FileHeader<Endian = Endianness>>(
    header: &E,
    endian: Endianness,
    content: &Content,
    headers: &mut Headers,
) -> Result<(), String> {
    let (offset, count) = (header.e_phoff(endian).into(), usize::from(header.e_phnum(endian)));
    if offset == 0 || count == 0 {
        return Ok(());
    }
    let size = header.e_phentsize(endian);
    let bytes = table::<E::ProgramHeader>(content, offset, size, count, limits::SEGMENTS, "program")?;
    for raw in entries::<E::ProgramHeader>(&bytes) {
        let (vaddr, memsz) = (raw.p_vaddr(endian).into(), raw.p_memsz(endian).into());
        let (offset, size) = (raw.p_offset(endian).into(), raw.p_filesz(endian).into());
        let special = SpecialSegment { vaddr, offset, size };
        match raw.p_type(endian) {
            elf::PT_LOAD => headers.segments.push(Segment {
                vaddr,
                memsz,
                offset,
                filesz: size,
                executable: raw.p_flags(endian).contains(elf::PF_X),
            }),
            elf::PT_NOTE => headers.notes.push(special),
            elf::PT_GNU_EH_FRAME => headers.eh_frame_hdr = Some(special),
            _ => {}
        }
    }
    Ok(())
}

fn read_sections<E: FileHeader<Endian = Endianness>>(
    header: &E,
    endian: Endianness,
    content: &Content,
    headers: &mut Headers,
) -> Result<(), String> {
    let offset = header.e_shoff(endian).into();
    let (count, size) = (usize::from(header.e_shnum(endian)), header.e_shentsize(endian));
    if offset == 0 {
        return Ok(());
    }
    if count == 0 {
        // The actual number, above 65,279, is then stored in the first section header.
        return Err("it has more section headers than are read".to_owned());
    }
    let bytes = table::<E::SectionHeader>(content, offset, size, count, limits::SECTIONS, "section")?;
    headers.sections = entries::<E::SectionHeader>(&bytes)
        .iter()
        .map(|raw| SectionRecord {
            name: raw.sh_name(endian),
            kind: raw.sh_type(endian).0,
            flags: raw.sh_flags(endian).0,
            address: raw.sh_addr(endian).into(),
            offset: raw.sh_offset(endian).into(),
            size: raw.sh_size(endian).into(),
            link: raw.sh_link(endian),
            entry_size: raw.sh_entsize(endian).into(),
        })
        .collect();
    let names = headers.sections.get(usize::from(header.e_shstrndx(endian).0));
    headers.names = names
        .filter(|names| names.size <= limits::SECTION_NAMES)
        .and_then(|names| content.read_uncached(names.offset, names.size));
    if headers.names.is_none() {
        return Err("the section names are malformed".to_owned());
    }
    Ok(())
}

fn machine_name(machine: elf::Machine) -> &'static str {
    match machine {
        elf::EM_X86_64 => "x86_64",
        elf::EM_AARCH64 => "aarch64",
        elf::EM_386 => "i386",
        elf::EM_ARM => "arm",
        elf::EM_PPC64 => "ppc64",
        elf::EM_RISCV => "riscv",
        elf::EM_S390 => "s390",
        _ => "unknown",
    }
}
