//! The symbols in a pack: a column of each field in the order of addresses, so that they compress well.

use object::elf::SHT_SYMTAB;

use super::bytes::Bytes;
use super::elf::ElfFile;
use super::pack::MAX_UNPACKED;
use super::rawtable::{Binding, RawSymbol, RawTable};

/// Functions begin at multiples of this, most of them right behind the one before.
const ALIGNMENT: u64 = 16;
/// What the C++ compiler makes for its own use: tables of virtual functions, type names, guards. Many and long,
/// and nobody asks for one.
const COMPILERS: [&str; 2] = ["_ZT", "_ZGV"];
/// Numbers of the sections that symbols of a pack are in.
const CODE: u16 = 1;
const DATA: u16 = 2;
/// More than the largest server has, for its memory's sake.
const MAX_SYMBOLS: usize = 1 << 20;

/// Symbols that were read from a pack.
pub(super) struct Decoded {
    /// As a symbol table has them.
    pub entries: Vec<u8>,
    pub functions: usize,
    pub variables: usize,
}

struct Packed<'table> {
    symbol: RawSymbol,
    code: bool,
    name: &'table str,
}

/// The functions and variables of a file: the columns, and the names.
pub(super) fn encode(elf: &ElfFile) -> Result<(Vec<u8>, Vec<u8>), String> {
    let table = RawTable::read(elf, SHT_SYMTAB)?
        .ok_or_else(|| elf.problem().unwrap_or("it has no symbol table (.symtab)").to_owned())?;
    let (mut all, mut bytes) = (Vec::new(), 0);
    for packed in table.symbols().filter_map(|(_, symbol)| wanted(&table, symbol)) {
        // Counted one by one: symbols may share one long name.
        bytes += packed.name.len() + 1;
        if bytes as u64 > MAX_UNPACKED {
            return Err(format!("the names of its symbols take more than {MAX_UNPACKED} bytes"));
        }
        all.push(packed);
    }
    all.sort_by_key(|one| (one.symbol.address, one.symbol.size, one.symbol.info, one.name));
    let (mut kinds, mut starts, mut sizes, mut names) = (Vec::new(), Vec::new(), Vec::new(), vec![0]);
    let mut expected = 0_u64;
    for Packed { symbol, code, name } in &all {
        kinds.push(kind(*symbol, *code));
        put(&mut starts, zigzag(symbol.address.wrapping_sub(expected).cast_signed()));
        put(&mut sizes, symbol.size);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        expected = after(symbol.address, symbol.size);
    }
    if all.is_empty() || all.len() > MAX_SYMBOLS {
        return Err(format!("it has {} symbols: a pack takes 1 to {MAX_SYMBOLS}", all.len()));
    }
    let columns = [&(all.len() as u32).to_le_bytes()[..], &kinds, &starts, &sizes].concat();
    Ok((columns, names))
}

fn wanted(table: &RawTable, symbol: RawSymbol) -> Option<Packed<'_>> {
    let code = table.is_function(symbol);
    if !code && !symbol.is_definition() {
        return None;
    }
    let name = table.full_name(symbol).filter(|name| !name.is_empty())?;
    let used = code || !COMPILERS.iter().any(|beginning| name.starts_with(beginning));
    used.then_some(Packed { symbol, code, name })
}

/// The entries of a symbol table whose names lie in `strings`; an error says in words what is wrong.
pub(super) fn decode(columns: &Bytes, strings: &[u8]) -> Result<Decoded, String> {
    let count: &[u8; 4] = columns.first_chunk().ok_or("it has no symbols")?;
    let count = u32::from_le_bytes(*count) as usize;
    if count > MAX_SYMBOLS {
        return Err(format!("it would have {count} symbols"));
    }
    let kinds = columns.get(4..).and_then(|rest| rest.get(..count)).ok_or("its symbols are cut off")?;
    let starts = &columns[4 + count..];
    let mut sizes = Numbers(starts);
    for _ in 0..count {
        sizes.next()?;
    }
    let (mut starts, mut names) = (Numbers(starts), names(strings));
    let mut decoded = Decoded { entries: Vec::with_capacity(24 * count), functions: 0, variables: 0 };
    let mut expected = 0_u64;
    for kind in kinds {
        let address = expected.wrapping_add_signed(unzigzag(starts.next()?));
        let (size, name) = (sizes.next()?, names.next().ok_or("its names are cut off")?);
        let code = kind & 1 != 0;
        let section = if code { CODE } else { DATA };
        let symbol = RawSymbol { name, info: info(*kind), section, address, size };
        decoded.entries.extend(symbol.bytes());
        if code {
            decoded.functions += 1;
        } else {
            decoded.variables += 1;
        }
        expected = after(address, size);
    }
    if names.next().is_some() || !sizes.0.is_empty() {
        return Err("something follows its symbols".to_owned());
    }
    Ok(decoded)
}

/// The table of decoded entries.
pub(super) fn table(entries: Bytes, strings: Bytes) -> RawTable {
    RawTable::of(entries, strings, vec![false, true, false])
}

/// Binding, type and whether it is code, in one byte. A binding that few know (`STB_GNU_UNIQUE`) is a global one.
fn kind(symbol: RawSymbol, code: bool) -> u8 {
    let binding = match symbol.binding() {
        Binding::Local => 0,
        Binding::Global => 1,
        Binding::Weak => 2,
    };
    binding << 5 | (symbol.info & 0xf) << 1 | u8::from(code)
}

/// `st_info` of a symbol of this kind.
fn info(kind: u8) -> u8 {
    (kind >> 5) << 4 | (kind >> 1 & 0xf)
}

/// Where the next symbol is expected.
fn after(address: u64, size: u64) -> u64 {
    address.saturating_add(size).checked_next_multiple_of(ALIGNMENT).unwrap_or(address)
}

/// Small numbers of either sign as small ones without.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// ULEB128
fn put(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Numbers as [`put`] writes them.
struct Numbers<'data>(&'data [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or("its numbers are cut off")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is too long".to_owned())
    }
}

/// Where each name begins; the first byte is the empty name that every table of strings begins with.
fn names(strings: &[u8]) -> impl Iterator<Item = u32> {
    let ends = strings.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at as u32);
    let mut begin = None;
    ends.filter_map(move |end| begin.replace(end + 1))
}
