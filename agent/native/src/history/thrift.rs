//! Reads structs in Thrift's compact protocol (thrift-compact-protocol.md in Thrift's repository), as far as needed
//! to check them before the Parquet library reads them.

/// Type ids of the protocol.
pub const STRUCT: u8 = 12;
pub const LISTS: std::ops::RangeInclusive<u8> = 9..=10;
pub const BOOLEANS: std::ops::RangeInclusive<u8> = 1..=2;
pub const BYTE: u8 = 3;
pub const INTEGERS: std::ops::RangeInclusive<u8> = 4..=6;
pub const DOUBLE: u8 = 7;
pub const BINARY: u8 = 8;
/// The largest size or count in a page header, where they are signed 32-bit integers.
const LARGEST: u64 = (1 << 31) - 1;
/// Maximum nesting of the structs and lists that `skip` reads. A whole footer has 8 levels.
const MOST_DEPTH: u32 = 16;

/// The bytes that have not been read yet. Methods return None if the bytes are malformed or end too early.
pub struct Input<'a> {
    bytes: &'a [u8],
    depth: u32,
}

impl<'a> Input<'a> {
    /// Read from `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, depth: MOST_DEPTH }
    }

    /// Return the number of bytes that have not been read.
    pub fn rest(&self) -> usize {
        self.bytes.len()
    }

    /// Call `each`, which must read the value, with the id and the type of each field of a struct. Fail unless the
    /// ids are in ascending order, so that no field occurs twice.
    pub fn fields(&mut self, mut each: impl FnMut(&mut Self, u8, u8) -> Option<()>) -> Option<()> {
        let mut id = 0_u8;
        loop {
            let first = self.byte()?;
            if first == 0 {
                return Some(());
            }
            let step = first >> 4;
            id = id.checked_add(step).filter(|_| step > 0)?;
            each(self, id, first & 0xF)?;
        }
    }

    /// Skip a value of a type.
    pub fn skip(&mut self, kind: u8) -> Option<()> {
        self.depth = self.depth.checked_sub(1)?;
        match kind {
            BYTE => self.pass(1),
            DOUBLE => self.pass(8),
            BINARY => {
                let length = self.varint()?;
                self.pass(length)
            }
            STRUCT => self.fields(|input, _, kind| input.skip(kind)),
            _ if BOOLEANS.contains(&kind) => Some(()), // the type is the value
            _ if INTEGERS.contains(&kind) => self.varint().map(drop),
            _ if LISTS.contains(&kind) => self.list(u64::MAX, Self::skip),
            _ => None,
        }?;
        self.depth += 1;
        Some(())
    }

    /// Call `each`, which must read the element, with the type of each element of a list. Fail if there are more
    /// than `most` elements.
    ///
    /// A list of booleans, which Parquet's footers and headers do not contain, counts as malformed: the Parquet
    /// library assumes that its elements take no bytes, and would count to 2^31.
    pub fn list(&mut self, most: u64, mut each: impl FnMut(&mut Self, u8) -> Option<()>) -> Option<()> {
        let first = self.byte()?;
        let count = if first >> 4 == 0xF { self.varint()? } else { u64::from(first >> 4) };
        let kind = first & 0xF;
        if BOOLEANS.contains(&kind) || count > most {
            return None;
        }
        (0..count).try_for_each(|_| each(self, kind))
    }

    /// Read an integer from 0 to `LARGEST`. Negative integers are rejected; in their encoding, the lowest bit is set.
    pub fn size(&mut self, kind: u8) -> Option<u64> {
        let raw = if INTEGERS.contains(&kind) { self.varint()? } else { return None };
        (raw & 1 == 0 && raw >> 1 <= LARGEST).then_some(raw >> 1)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7F).checked_shl(7 * place)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(bytes).ok()?..)?;
        Some(())
    }
}
