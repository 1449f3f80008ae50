//! Describes types from DWARF: their members, their size, and the scalar inside a wrapper type.

use gimli::{AttributeValue, constants};

use super::Kind;
use super::units::{Entry, Place, Units};

/// Maximum depth of references between types, which breaks cycles in malformed files.
const MAX_DEPTH: usize = 32;
/// The distance between the slots of an InnoDB counter, in bytes (`CACHE_LINE_SIZE`, MySQL 5.6 to 9.7).
const CACHE_LINE: u64 = 64;

/// The shape of a type without typedefs and qualifiers.
pub(super) enum Shape {
    Scalar { size: u64, kind: Kind },
    Pointer(Place),
    Structure { complete: bool },
    Array { element: Place, count: u64 },
}

/// The scalar that a member holds. A counter has `slots` such scalars.
pub(super) struct Leaf {
    pub offset: u64,
    pub size: u64,
    pub kind: Kind,
    pub stride: u64,
    pub slots: u64,
}

impl Leaf {
    fn plain(size: u64, kind: Kind) -> Self {
        Self { offset: 0, size, kind, stride: 0, slots: 0 }
    }
}

pub(super) struct Types<'units, 'data>(pub &'units Units<'data>);

impl<'data> Types<'_, 'data> {
    /// Return the type without typedefs and qualifiers.
    fn stripped(&self, place: Place) -> Option<(Place, Entry<'data>)> {
        let mut place = place;
        for _ in 0..MAX_DEPTH {
            let entry = self.0.entry(place)?;
            match entry.tag() {
                constants::DW_TAG_typedef
                | constants::DW_TAG_const_type
                | constants::DW_TAG_volatile_type
                | constants::DW_TAG_atomic_type => {
                    place = self.0.reference(place, &entry, constants::DW_AT_type)?;
                }
                _ => return Some((place, entry)),
            }
        }
        None
    }

    /// Return the shape of a type; None if it holds no data or is malformed.
    pub fn shape(&self, place: Place) -> Option<Shape> {
        let (place, entry) = self.stripped(place)?;
        let size = || unsigned(&entry, constants::DW_AT_byte_size);
        match entry.tag() {
            constants::DW_TAG_base_type => Some(Shape::Scalar { size: size()?, kind: kind(&entry) }),
            constants::DW_TAG_enumeration_type => Some(Shape::Scalar { size: size()?, kind: Kind::Unsigned }),
            constants::DW_TAG_pointer_type | constants::DW_TAG_reference_type => {
                Some(match self.0.reference(place, &entry, constants::DW_AT_type) {
                    Some(target) => Shape::Pointer(target),
                    None => Shape::Scalar { size: 8, kind: Kind::Pointer }, // void *
                })
            }
            constants::DW_TAG_structure_type
            | constants::DW_TAG_class_type
            | constants::DW_TAG_union_type => {
                Some(Shape::Structure { complete: !entry.has_attr(constants::DW_AT_declaration) })
            }
            constants::DW_TAG_array_type => {
                let element = self.0.reference(place, &entry, constants::DW_AT_type)?;
                Some(Shape::Array { element, count: self.elements(place) })
            }
            _ => None,
        }
    }

    /// Return the number of elements of an array, over all its dimensions; 0 if the type does not specify it.
    fn elements(&self, array: Place) -> u64 {
        let mut total = 1;
        self.0.children(array, |_, entry| {
            if entry.tag() == constants::DW_TAG_subrange_type {
                let count = unsigned(entry, constants::DW_AT_count).or_else(|| {
                    unsigned(entry, constants::DW_AT_upper_bound).and_then(|last| last.checked_add(1))
                });
                total = count.and_then(|count| count.checked_mul(total)).unwrap_or(0);
            }
            true
        });
        total
    }

    /// Return the size of a value of this type in bytes.
    pub fn size(&self, place: Place) -> Option<u64> {
        let (place, entry) = self.stripped(place)?;
        match self.shape(place)? {
            Shape::Scalar { size, .. } => Some(size),
            Shape::Pointer(_) => Some(8),
            Shape::Structure { .. } => unsigned(&entry, constants::DW_AT_byte_size),
            Shape::Array { element, count } => self.size(element)?.checked_mul(count),
        }
    }

    /// Return the offset and the type of a member of a structure. Members of base classes and of anonymous
    /// members count as members of the structure.
    pub fn member(&self, structure: Place, name: &str) -> Option<(u64, Place)> {
        self.member_within(structure, name, 0)
    }

    fn member_within(&self, structure: Place, name: &str, depth: usize) -> Option<(u64, Place)> {
        if depth > MAX_DEPTH {
            return None;
        }
        let all = self.members(structure);
        let own = all.iter().find(|member| member.name == Some(name.as_bytes()));
        if let Some(member) = own {
            return Some((member.offset, member.of));
        }
        all.iter().filter(|member| member.name.is_none()).find_map(|member| {
            let (offset, of) = self.member_within(member.of, name, depth + 1)?;
            Some((member.offset.checked_add(offset)?, of))
        })
    }

    /// List data members and base classes in declaration order. Base classes have no name.
    fn members(&self, structure: Place) -> Vec<DataMember<'data>> {
        let Some((structure, _)) = self.stripped(structure) else { return Vec::new() };
        let mut found = Vec::new();
        self.0.children(structure, |place, entry| {
            let base = entry.tag() == constants::DW_TAG_inheritance;
            let data = entry.tag() == constants::DW_TAG_member
                && !entry.has_attr(constants::DW_AT_external)
                && !entry.has_attr(constants::DW_AT_bit_size);
            if base || data {
                let name = if base { None } else { self.0.name(place, entry) };
                let of = self.0.reference(place, entry, constants::DW_AT_type);
                if let (Some(offset), Some(of)) = (member_offset(entry), of) {
                    found.push(DataMember { name, offset, of });
                }
            }
            true
        });
        found
    }

    /// Return the leaf of a type: the type itself, or the scalar that it wraps.
    pub fn leaf(&self, place: Place) -> Result<Leaf, String> {
        self.leaf_within(place, 0)
    }

    fn leaf_within(&self, place: Place, depth: usize) -> Result<Leaf, String> {
        match self.shape(place) {
            Some(Shape::Scalar { size, kind }) => Ok(Leaf::plain(size, kind)),
            Some(Shape::Pointer(_)) => Ok(Leaf::plain(8, Kind::Pointer)),
            Some(Shape::Structure { complete: true }) if depth < MAX_DEPTH => self.unwrapped(place, depth),
            Some(Shape::Array { .. }) => Err("it is an array".to_owned()),
            _ => Err("its type is not described".to_owned()),
        }
    }

    /// Return the leaf of a structure: a counter with slots, a wrapper around one scalar, or the structure
    /// itself.
    fn unwrapped(&self, place: Place, depth: usize) -> Result<Leaf, String> {
        let size = self.size(place).ok_or("a structure without a size")?;
        if let Some((offset, array)) = self.member(place, "m_counter")
            && let Some(Shape::Array { element, count }) = self.shape(array)
        {
            return self.slots(offset, element, count, depth);
        }
        let mut members = self.members(place);
        members.retain(|member| member.name.is_some() || !self.members(member.of).is_empty());
        let [only] = &members[..] else {
            return Ok(Leaf::plain(size, Kind::Structure));
        };
        match self.leaf_within(only.of, depth + 1) {
            Ok(inner) if inner.kind != Kind::Structure && inner.slots == 0 => {
                Ok(Leaf { offset: only.offset + inner.offset, ..inner })
            }
            _ => Ok(Leaf::plain(size, Kind::Structure)),
        }
    }

    /// Return a leaf for an `ib_counter_t`. Its slots are either plain numbers one cache line apart, after an
    /// unused cache line (MySQL, MariaDB up to 10.2), or structures as large as a cache line (MariaDB from
    /// 10.3).
    fn slots(&self, offset: u64, element: Place, count: u64, depth: usize) -> Result<Leaf, String> {
        let stride = self.size(element).ok_or("slots without a size")?;
        let leaf = self.first_scalar(element, depth + 1)?;
        if stride >= CACHE_LINE {
            return Ok(Leaf { offset: offset + leaf.offset, stride, slots: count, ..leaf });
        }
        let in_line = CACHE_LINE.checked_div(stride).filter(|n| *n > 0).ok_or("slots without a size")?;
        match (count / in_line).checked_sub(1) {
            Some(slots) if slots > 0 => {
                Ok(Leaf { offset: offset + CACHE_LINE, stride: CACHE_LINE, slots, ..leaf })
            }
            _ => Err("a counter without slots".to_owned()),
        }
    }

    /// Return the scalar at the start of a slot. The rest of the slot is padding.
    fn first_scalar(&self, place: Place, depth: usize) -> Result<Leaf, String> {
        match self.shape(place) {
            Some(Shape::Structure { complete: true }) if depth < MAX_DEPTH => {
                let members = self.members(place);
                let first = members.first().ok_or("an empty slot")?;
                let inner = self.first_scalar(first.of, depth + 1)?;
                Ok(Leaf { offset: first.offset + inner.offset, ..inner })
            }
            _ => self.leaf_within(place, depth),
        }
    }
}

struct DataMember<'data> {
    name: Option<&'data [u8]>,
    offset: u64,
    of: Place,
}

fn unsigned(entry: &Entry<'_>, attribute: constants::DwAt) -> Option<u64> {
    entry.attr(attribute)?.udata_value()
}

fn kind(entry: &Entry<'_>) -> Kind {
    match entry.attr_value(constants::DW_AT_encoding) {
        Some(AttributeValue::Encoding(constants::DW_ATE_signed | constants::DW_ATE_signed_char)) => {
            Kind::Signed
        }
        Some(AttributeValue::Encoding(constants::DW_ATE_float)) => Kind::Float,
        _ => Kind::Unsigned,
    }
}

/// Return a member's offset. DWARF contains it as a number, as the expression `DW_OP_plus_uconst number`
/// (compilers up to GCC 4), or not at all (0, in a union).
fn member_offset(entry: &Entry<'_>) -> Option<u64> {
    let Some(attribute) = entry.attr(constants::DW_AT_data_member_location) else {
        return Some(0);
    };
    if let Some(offset) = attribute.udata_value() {
        return Some(offset);
    }
    let expression = attribute.exprloc_value()?.0.slice();
    let (&operation, mut number) = expression.split_first()?;
    if operation != constants::DW_OP_plus_uconst.0 {
        return None;
    }
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = number.split_first()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        number = rest;
        if byte & 0x80 == 0 {
            return number.is_empty().then_some(value);
        }
    }
    None
}
