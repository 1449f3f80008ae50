//! An index of functions, sorted by address.

use super::memory_budget::CountedBytes;
use super::rawtable::{RawSymbol, RawTable};

/// The index of a function's symbol in its table; the top bit selects the table.
#[derive(Clone, Copy, Debug)]
pub struct SymbolId(u32);

const SECOND_TABLE: u32 = 1 << 31;
const NO_OUTER: u32 = u32::MAX;

impl SymbolId {
    /// Return the symbol, and the table that contains it.
    pub fn find(self, tables: &[RawTable]) -> Option<(&RawTable, RawSymbol)> {
        let table = tables.get(usize::from(self.0 & SECOND_TABLE != 0))?;
        Some((table, table.symbol(self.0 & !SECOND_TABLE)?))
    }
}

/// One function.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub address: u64,
    pub size: u32,
    pub symbol: SymbolId,
}

impl Entry {
    /// Create the entry of a symbol.
    pub fn new(symbol: SymbolId, raw: RawSymbol) -> Self {
        Self { address: raw.address, size: u32::try_from(raw.size).unwrap_or(u32::MAX), symbol }
    }

    /// Return the address after the function.
    pub fn end(self) -> u64 {
        self.address.saturating_add(self.size.into())
    }
}

/// The functions sorted by address. Everything else is read from the symbol table when needed.
#[derive(Debug)]
pub struct ByAddress {
    pub functions: Vec<SymbolId>,
    /// For each function, the index of the enclosing function: the nearest earlier function that ends after it.
    pub outer: Vec<u32>,
    _counted: CountedBytes,
}

impl ByAddress {
    /// Memory that the index takes per function, in bytes.
    pub const BYTES: u64 = (size_of::<SymbolId>() + size_of::<u32>()) as u64;

    /// Index the functions of at most two tables.
    pub fn of(tables: &[RawTable]) -> Self {
        let mut entries = Vec::with_capacity(tables.iter().map(RawTable::len).sum());
        for (table, flag) in tables.iter().zip([0, SECOND_TABLE]) {
            let functions = table.symbols().filter(|(_, s)| table.is_function(*s));
            let id = |index: u32| SymbolId((index & !SECOND_TABLE) | flag);
            entries.extend(functions.map(|(index, symbol)| Entry::new(id(index), symbol)));
        }
        entries.sort_unstable_by_key(|entry| entry.address);
        let functions: Vec<_> = entries.iter().map(|entry| entry.symbol).collect();
        let outer = outer_entries(&entries);
        let counted = CountedBytes::new(size_of_val(&functions[..]) + size_of_val(&outer[..]));
        Self { functions, outer, _counted: counted }
    }
}

/// Return [`ByAddress::outer`] of the functions, which are sorted by address.
fn outer_entries(entries: &[Entry]) -> Vec<u32> {
    let mut outer = Vec::with_capacity(entries.len());
    let mut open: Vec<u32> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let ends_before = |other: &u32| entries[*other as usize].end() <= entry.end();
        while open.last().is_some_and(ends_before) {
            open.pop();
        }
        outer.push(open.last().copied().unwrap_or(NO_OUTER));
        open.push(at as u32);
    }
    outer
}
