//! The ELF, program and section headers, read once into plain records of either class and byte order.

use std::ops::Range;

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};

use super::bytes::Bytes;

/// A part of the file that is mapped into memory (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First ELF virtual address.
    pub vaddr: u64,
    /// Bytes in memory.
    pub memsz: u64,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Bytes in the file; the rest of `memsz` is zero.
    pub filesz: u64,
    /// Whether it is mapped executable.
    pub executable: bool,
}

impl Segment {
    /// The addresses it has in memory.
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

/// A program header that is not `PT_LOAD` but of use: where and how long it is in the file and in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Special {
    pub vaddr: u64,
    pub offset: u64,
    pub size: u64,
}

/// All that the headers say.
#[derive(Debug)]
pub(super) struct Headers {
    pub machine: &'static str,
    pub entry: u64,
    /// 64 bit and little-endian: the only kind whose symbols are read.
    pub plain: bool,
    pub segments: Vec<Segment>,
    pub notes: Vec<Special>,
    pub eh_frame_hdr: Option<Special>,
    pub sections: Vec<SectionRecord>,
    pub names: Option<Bytes>,
    /// Why there are no program headers or no sections, where the file says that it has them.
    pub problem: Option<String>,
}

impl Headers {
    /// Reads the headers; an error is the reason in words.
    pub fn read(data: &Bytes) -> Result<Self, String> {
        match FileKind::parse(&**data) {
            Ok(FileKind::Elf64) => read_class::<elf::FileHeader64<Endianness>>(data),
            Ok(FileKind::Elf32) => read_class::<elf::FileHeader32<Endianness>>(data),
            _ => Err("not an ELF file".to_owned()),
        }
    }

    /// The name of a section, empty where it has none.
    pub fn name_of(&self, section: &SectionRecord) -> &[u8] {
        let names: &[u8] = self.names.as_deref().unwrap_or_default();
        let tail = names.get(section.name as usize..).unwrap_or_default();
        let end = tail.iter().position(|byte| *byte == 0).unwrap_or(0);
        &tail[..end]
    }

    /// The first section of this name that has bytes in the file.
    pub fn find(&self, name: &str) -> Option<&SectionRecord> {
        self.sections.iter().find(|s| s.kind != elf::SHT_NOBITS.0 && self.name_of(s) == name.as_bytes())
    }

    /// Whether a section of this name was left out of the file, as most are of a debug file.
    pub fn is_left_out(&self, name: &str) -> bool {
        let mut left_out = self.sections.iter().filter(|s| s.kind == elf::SHT_NOBITS.0);
        left_out.any(|s| self.name_of(s) == name.as_bytes())
    }

    /// The first section of this type.
    pub fn find_kind(&self, kind: elf::SectionType) -> Option<&SectionRecord> {
        self.sections.iter().find(|s| s.kind == kind.0)
    }
}

fn read_class<E: FileHeader<Endian = Endianness>>(data: &Bytes) -> Result<Headers, String> {
    let raw: &[u8] = data;
    let header = E::parse(raw).map_err(|error| error.to_string())?;
    let endian = header.endian().map_err(|error| error.to_string())?;
    let mut headers = Headers {
        machine: machine_name(header.e_machine(endian)),
        entry: header.e_entry(endian).into(),
        plain: header.is_type_64() && header.is_little_endian(),
        segments: Vec::new(),
        notes: Vec::new(),
        eh_frame_hdr: None,
        sections: Vec::new(),
        names: None,
        problem: None,
    };
    match header.program_headers(endian, raw) {
        Ok(list) => read_segments::<E>(list, endian, &mut headers),
        Err(error) => headers.problem = Some(error.to_string()),
    }
    match header.section_headers(endian, raw) {
        Ok(list) => read_sections::<E>(header, list, endian, data, &mut headers),
        Err(error) => headers.problem = Some(error.to_string()),
    }
    Ok(headers)
}

fn read_segments<E: FileHeader<Endian = Endianness>>(
    list: &[E::ProgramHeader],
    endian: Endianness,
    headers: &mut Headers,
) {
    for raw in list {
        let (vaddr, memsz) = (raw.p_vaddr(endian).into(), raw.p_memsz(endian).into());
        let (offset, size) = (raw.p_offset(endian).into(), raw.p_filesz(endian).into());
        let special = Special { vaddr, offset, size };
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
}

fn read_sections<E: FileHeader<Endian = Endianness>>(
    header: &E,
    list: &[E::SectionHeader],
    endian: Endianness,
    data: &Bytes,
    headers: &mut Headers,
) {
    headers.sections = list
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
    if headers.sections.is_empty() {
        return;
    }
    headers.names = header
        .shstrndx(endian, &**data)
        .ok()
        .and_then(|index| headers.sections.get(index as usize))
        .and_then(|names| data.part(names.offset, names.size));
    if headers.names.is_none() {
        headers.problem = Some("the section names are damaged".to_owned());
    }
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
