//! Reads the compilation units of a file's DWARF: finds those that mention a name, and lists their top-level
//! declarations.

use std::cell::OnceCell;
use std::convert::Infallible;

use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebuggingInformationEntry, Dwarf, DwarfSections, EndianSlice,
    EntriesCursor, LittleEndian, Section as _, SectionId, Unit, UnitHeader, UnitOffset, constants,
};
use rustc_hash::FxHashMap;

use crate::symbols::{Bytes, ElfFile};

pub(super) type Slice<'data> = EndianSlice<'data, LittleEndian>;
pub(super) type Entry<'data> = DebuggingInformationEntry<Slice<'data>>;

/// The sections that describe types, and the line table, whose header is read with each unit. Other sections
/// are neither read nor decompressed.
const NEEDED: [SectionId; 6] = [
    SectionId::DebugAbbrev,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// Number of bytes of `.debug_info` that a scan holds in memory at a time.
const PIECE: usize = 4 << 20;

/// The sections of a file. [`Units`] borrows from them.
pub(super) struct Sections {
    all: DwarfSections<Bytes>,
    /// `.debug_info` and `.debug_str`, which are scanned completely and then released.
    entries: Bytes,
    strings: Bytes,
}

/// Map or decompress the needed sections.
pub(super) fn sections(elf: &ElfFile) -> Sections {
    let nothing = Bytes::from(Vec::new());
    let (mut entries, mut strings) = (nothing.clone(), nothing.clone());
    let Ok(all) = DwarfSections::load(|id| -> Result<Bytes, Infallible> {
        let section = NEEDED.contains(&id).then(|| elf.section(id.name())).flatten();
        let data = section.map_or_else(|| nothing.clone(), |section| section.data);
        match id {
            SectionId::DebugInfo => entries = data.clone(),
            SectionId::DebugStr => strings = data.clone(),
            _ => {}
        }
        Ok(data)
    });
    Sections { all, entries, strings }
}

/// The location of a DWARF entry: its unit and the offset within the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    unit: usize,
    offset: UnitOffset,
}

/// All units of a file. Each unit is parsed when it is first used.
pub(super) struct Units<'data> {
    sections: &'data Sections,
    dwarf: Dwarf<Slice<'data>>,
    headers: Vec<UnitHeader<Slice<'data>>>,
    parsed: Vec<OnceCell<Option<Unit<Slice<'data>>>>>,
}

impl<'data> Units<'data> {
    /// Read the list of units, up to the first malformed one.
    pub fn new(sections: &'data Sections) -> Self {
        let mut dwarf = sections.all.borrow(|section| EndianSlice::new(section, LittleEndian));
        // Without the cache, many small units that share one large table would each have their own copy.
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let mut headers = Vec::new();
        let mut iter = dwarf.units();
        while let Ok(Some(header)) = iter.next() {
            headers.push(header);
        }
        let parsed = headers.iter().map(|_| OnceCell::new()).collect();
        Self { sections, dwarf, headers, parsed }
    }

    /// List the units that contain string references to any of these names. The units that mention the most
    /// names come first.
    ///
    /// This scans the raw bytes, which is ten times faster than parsing all entries. Bytes that only look
    /// like a reference cause an unnecessary parse of a unit. If strings are indexed (Clang's DWARF 5), all
    /// units are returned.
    pub fn units_mentioning(&self, names: &[&str]) -> Vec<usize> {
        if !self.dwarf.debug_str_offsets.reader().is_empty() {
            return (0..self.headers.len()).collect();
        }
        let references = string_offsets(self.dwarf.debug_str.reader().slice(), names);
        self.sections.strings.release();
        let mut low_bits = vec![false; 1 << 16];
        for offset in references.keys() {
            low_bits[(offset & 0xffff) as usize] = true;
        }
        let mut found: Vec<(usize, usize)> = Vec::new();
        let mut scanned = 0;
        for unit in 0..self.headers.len() {
            scanned += self.bytes(unit).len();
            if scanned > PIECE {
                self.sections.entries.release();
                scanned = 0;
            }
            let mut seen = vec![false; names.len()];
            for window in self.bytes(unit).windows(4) {
                let value = u32::from_le_bytes([window[0], window[1], window[2], window[3]]);
                if low_bits[(value & 0xffff) as usize]
                    && let Some(name) = references.get(&value)
                {
                    seen[*name] = true;
                }
            }
            let count = seen.iter().filter(|seen| **seen).count();
            if count > 0 {
                found.push((count, unit));
            }
        }
        found.sort_by_key(|(count, unit)| (std::cmp::Reverse(*count), *unit));
        found.into_iter().map(|(_, unit)| unit).collect()
    }

    fn bytes(&self, unit: usize) -> &'data [u8] {
        let header = &self.headers[unit];
        let start = header.debug_info_offset().map_or(0, |offset| offset.0);
        let end = start.saturating_add(header.length_including_self());
        self.dwarf.debug_info.reader().slice().get(start..end).unwrap_or_default()
    }

    fn unit(&self, index: usize) -> Option<&Unit<Slice<'data>>> {
        let header = self.headers.get(index)?;
        self.parsed[index].get_or_init(|| self.dwarf.unit(*header).ok()).as_ref()
    }

    /// List the variables and types with these names that are declared outside functions, as (name, type).
    ///
    /// Each entry is visited once, however deeply namespaces are nested.
    pub fn declarations<T>(&self, unit: usize, names: &FxHashMap<String, T>) -> Vec<(String, Place)> {
        let mut found = Vec::new();
        let Some(parsed) = self.unit(unit) else { return found };
        let mut entries = parsed.entries();
        while let Ok(true) = advance(&mut entries) {
            let Some(entry) = entries.current() else { continue };
            if entry.depth() == 0 && entry.offset() != parsed.root_offset() {
                break; // beyond the last entry of the unit
            }
            let place = Place { unit, offset: entry.offset() };
            match entry.tag() {
                constants::DW_TAG_variable => found.extend(self.variable(place, entry, names)),
                constants::DW_TAG_structure_type
                | constants::DW_TAG_class_type
                | constants::DW_TAG_typedef => {
                    if let Some(name) = self.wanted(place, entry, constants::DW_AT_name, names) {
                        found.push((name, place));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Return the name and the type of a variable, if its name is wanted. For a static member of a class, this is
    /// the mangled name: up to DWARF 4, the definition contains it; in DWARF 5, the definition refers to the
    /// declaration in the class, which contains it.
    fn variable<T>(
        &self,
        place: Place,
        entry: &Entry<'data>,
        names: &FxHashMap<String, T>,
    ) -> Option<(String, Place)> {
        if let Some(name) = self.wanted(place, entry, constants::DW_AT_name, names) {
            return Some((name, self.reference(place, entry, constants::DW_AT_type)?));
        }
        let declared = self.reference(place, entry, constants::DW_AT_specification)?;
        let declaration = self.entry(declared)?;
        let mangled = |place: Place, entry: &Entry<'data>| {
            [constants::DW_AT_linkage_name, constants::DW_AT_MIPS_linkage_name] // the second one before DWARF 4
                .into_iter()
                .find_map(|attribute| self.wanted(place, entry, attribute, names))
        };
        let name = mangled(place, entry).or_else(|| mangled(declared, &declaration))?;
        Some((name, self.reference(declared, &declaration, constants::DW_AT_type)?))
    }

    fn wanted<T>(
        &self,
        place: Place,
        entry: &Entry<'data>,
        attribute: constants::DwAt,
        names: &FxHashMap<String, T>,
    ) -> Option<String> {
        let name = std::str::from_utf8(self.string(place, entry, attribute)?).ok()?;
        names.get_key_value(name).map(|(name, _)| name.clone())
    }

    /// Call `visit` for each child of an entry, until it returns false.
    pub fn children(&self, of: Place, mut visit: impl FnMut(Place, &Entry<'data>) -> bool) {
        let Some(unit) = self.unit(of.unit) else { return };
        let Ok(mut tree) = unit.entries_tree(Some(of.offset)) else { return };
        let Ok(root) = tree.root() else { return };
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if !visit(Place { unit: of.unit, offset: entry.offset() }, entry) {
                return;
            }
        }
    }

    /// Parse the entry at this location.
    pub fn entry(&self, place: Place) -> Option<Entry<'data>> {
        self.unit(place.unit)?.entry(place.offset).ok()
    }

    /// Return the entry, in any unit, that an attribute refers to.
    pub fn reference(&self, place: Place, entry: &Entry<'data>, attribute: constants::DwAt) -> Option<Place> {
        match entry.attr_value(attribute)? {
            AttributeValue::UnitRef(offset) => Some(Place { unit: place.unit, offset }),
            AttributeValue::DebugInfoRef(offset) => {
                let begins = |header: &UnitHeader<_>| header.debug_info_offset().map_or(0, |at| at.0);
                let unit =
                    self.headers.partition_point(|header| begins(header) <= offset.0).checked_sub(1)?;
                let offset = offset.to_unit_offset(&self.headers[unit])?;
                Some(Place { unit, offset })
            }
            _ => None,
        }
    }

    /// Return an entry's name.
    pub fn name(&self, place: Place, entry: &Entry<'data>) -> Option<&'data [u8]> {
        self.string(place, entry, constants::DW_AT_name)
    }

    fn string(&self, place: Place, entry: &Entry<'data>, attribute: constants::DwAt) -> Option<&'data [u8]> {
        let value = entry.attr_value(attribute)?;
        Some(self.dwarf.attr_string(self.unit(place.unit)?, value).ok()?.slice())
    }
}

/// Move to the next entry, descending only into the unit itself and into namespaces. Return true if there may
/// be more entries. The current entry is `None` at the end of a list of siblings.
fn advance(entries: &mut EntriesCursor<'_, Slice<'_>>) -> gimli::Result<bool> {
    let descends = |entry: &Entry<'_>| entry.depth() == 0 || entry.tag() == constants::DW_TAG_namespace;
    if entries.current().is_none_or(descends) {
        return entries.next_entry();
    }
    entries.next_sibling()?;
    Ok(true)
}

/// Find the offsets of the names in `.debug_str`. Linkers may store a string as the tail of a longer one.
fn string_offsets(strings: &[u8], names: &[&str]) -> FxHashMap<u32, usize> {
    let mut found = FxHashMap::default();
    let mut start = 0;
    for string in strings.split(|byte| *byte == 0) {
        for (index, name) in names.iter().enumerate() {
            if string.ends_with(name.as_bytes())
                && let Ok(offset) = u32::try_from(start + string.len() - name.len())
            {
                found.insert(offset, index);
            }
        }
        start += string.len() + 1;
    }
    found
}
