//! Encodes and decodes the symbols of a pack: one column per field, ordered by address, so that they compress well.

use object::elf::SHT_SYMTAB;

use super::bytes::Bytes;
use super::elf::ElfFile;
use super::pack::MAX_UNPACKED;
use super::rawtable::{Binding, RawSymbol, RawTable};

/// The alignment of functions in bytes. Most functions begin at the next multiple after the end of the
/// previous function.
const ALIGNMENT: u64 = 16;
/// Prefixes of data that the C++ compiler generates: type information and names, tables for construction,
/// guards. These symbols are numerous, have long names, and are not looked up. Those of virtual tables
/// (`_ZTV`) are kept, because they identify the class of an object in the server's memory.
const OMITTED_PREFIXES: [&str; 5] = ["_ZTI", "_ZTS", "_ZTT", "_ZTC", "_ZGV"];
/// The section number that is assigned to the functions of a pack.
const CODE: u16 = 1;
/// The section number that is assigned to the variables of a pack.
const DATA: u16 = 2;
/// Maximum number of symbols in a pack, to limit memory. The largest server has fewer.
const MAX_SYMBOLS: usize = 1 << 20;

/// The symbols of a pack in the form of a symbol table.
pub(super) struct Decoded {
    /// An array of `Elf64_Sym`.
    pub entries: Vec<u8>,
    pub functions: usize,
    pub variables: usize,
}

struct Packed<'table> {
    symbol: RawSymbol,
    code: bool,
    name: &'table str,
}

/// Encode the functions and variables of a file; return the columns and the names.
pub(super) fn encode(elf: &ElfFile) -> Result<(Vec<u8>, Vec<u8>), String> {
    let table = RawTable::read(elf, SHT_SYMTAB)?
        .ok_or_else(|| elf.problem().unwrap_or("it has no symbol table (.symtab)").to_owned())?;
    let (mut all, mut bytes) = (Vec::new(), 0);
    for packed in table.symbols().filter_map(|(_, symbol)| wanted(&table, symbol)) {
        // Count the name of each symbol separately, because many symbols may share one long name.
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
        push_uleb128(&mut starts, zigzag(symbol.address.wrapping_sub(expected).cast_signed()));
        push_uleb128(&mut sizes, symbol.size);
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        expected = after(symbol.address, symbol.size);
    }
    if all.is_empty() || all.len() > MAX_SYMBOLS {
        return Err(format!("it has {} symbols; a pack must have 1 to {MAX_SYMBOLS}", all.len()));
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
    let used = code || !OMITTED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    used.then_some(Packed { symbol, code, name })
}

/// Decode the columns into the entries of a symbol table with the names in `strings`. Return a message if they
/// are malformed.
pub(super) fn decode(columns: &Bytes, strings: &[u8]) -> Result<Decoded, String> {
    let count: &[u8; 4] = columns.first_chunk().ok_or("it has no symbols")?;
    let count = u32::from_le_bytes(*count) as usize;
    if count > MAX_SYMBOLS {
        return Err(format!("it would have {count} symbols"));
    }
    let kinds = columns.get(4..).and_then(|rest| rest.get(..count)).ok_or("its symbols are truncated")?;
    let starts = &columns[4 + count..];
    let mut sizes = Uleb128Reader(starts);
    for _ in 0..count {
        sizes.next()?;
    }
    let (mut starts, mut names) = (Uleb128Reader(starts), names(strings));
    let mut decoded = Decoded { entries: Vec::with_capacity(24 * count), functions: 0, variables: 0 };
    let mut expected = 0_u64;
    for kind in kinds {
        let address = expected.wrapping_add_signed(unzigzag(starts.next()?));
        let (size, name) = (sizes.next()?, names.next().ok_or("its names are truncated")?);
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
        return Err("there is extra data after its symbols".to_owned());
    }
    Ok(decoded)
}

/// Create a symbol table from decoded entries.
pub(super) fn table(entries: Bytes, strings: Bytes) -> RawTable {
    RawTable::of(entries, strings, vec![false, true, false])
}

/// Pack binding, type and the code flag into one byte. Rare bindings such as `STB_GNU_UNIQUE` become global.
fn kind(symbol: RawSymbol, code: bool) -> u8 {
    let binding = match symbol.binding() {
        Binding::Local => 0,
        Binding::Global => 1,
        Binding::Weak => 2,
    };
    binding << 5 | (symbol.info & 0xf) << 1 | u8::from(code)
}

/// Return the `st_info` for a byte from [`kind`].
fn info(kind: u8) -> u8 {
    (kind >> 5) << 4 | (kind >> 1 & 0xf)
}

/// Return the address at which the next symbol is expected.
fn after(address: u64, size: u64) -> u64 {
    address.saturating_add(size).checked_next_multiple_of(ALIGNMENT).unwrap_or(address)
}

/// Map small positive and negative numbers to small unsigned numbers.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Append a number as ULEB128.
fn push_uleb128(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

/// Reads the numbers that [`push_uleb128`] wrote.
struct Uleb128Reader<'data>(&'data [u8]);

impl Uleb128Reader<'_> {
    fn next(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or("its numbers are truncated")?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is too long".to_owned())
    }
}

/// Return the offset of each name, except the empty one, which is the first byte of every string table.
fn names(strings: &[u8]) -> impl Iterator<Item = u32> {
    let ends = strings.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at as u32);
    let mut begin = None;
    ends.filter_map(move |end| begin.replace(end + 1))
}
