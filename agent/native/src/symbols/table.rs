//! Looks up the symbols of one module: the function that covers an address, and the address of a name.

use std::cmp::Reverse;
use std::path::PathBuf;
use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use super::by_address::{ByAddress, Entry, SymbolId};
use super::limits;
use super::rawtable::{Binding, PrefixFilter, RawSymbol, RawTable};

/// The source of the names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// `.symtab` of the file itself.
    Symtab,
    /// `.symtab` of the separate debug file.
    DebugFile,
    /// A symbol pack on this host.
    Pack,
    /// `.gnu_debugdata`, together with `.dynsym`.
    Debugdata,
    /// `.dynsym` of the file itself, which contains only exported functions.
    Dynsym,
    /// `.dynsym` of the vDSO.
    Vdso,
    /// No names are available.
    #[default]
    None,
}

impl Source {
    /// Return the string used in results: `symtab`, `debug-file`, `symbol-pack`, `debugdata`, `dynsym`,
    /// `vdso` or `none`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Symtab => "symtab",
            Self::DebugFile => "debug-file",
            Self::Pack => "symbol-pack",
            Self::Debugdata => "debugdata",
            Self::Dynsym => "dynsym",
            Self::Vdso => "vdso",
            Self::None => "none",
        }
    }
}

/// A function that covers an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol<'table> {
    /// The mangled name without a symbol version.
    pub name: &'table str,
    /// The ELF virtual address of the function.
    pub address: u64,
    /// Size in bytes; 0 for hand-written assembler that declares no size.
    pub size: u64,
}

/// The symbols of one module. It owns the parts of the files that contain the names.
#[derive(Debug, Default)]
pub struct SymbolTable {
    /// The source of the names.
    pub source: Source,
    /// The separate debug file or symbol pack, if one was used.
    pub path: Option<PathBuf>,
    /// The reason why a better source could not be used.
    pub problem: Option<String>,
    tables: Vec<RawTable>,
    /// The index of functions. It is built on the first lookup of an address, because many callers look up
    /// only names.
    by_address: OnceLock<ByAddress>,
}

impl SymbolTable {
    /// Create a symbol table from at most two raw tables, of which the second supplements the first.
    pub(super) fn new(source: Source, mut tables: Vec<RawTable>) -> Self {
        tables.truncate(2);
        Self { source, path: None, problem: None, tables, by_address: OnceLock::new() }
    }

    /// Return the size of the names in memory, in bytes. The index of functions is included, even before it
    /// is built.
    pub fn memory_bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.memory_bytes() + ByAddress::BYTES * table.len() as u64).sum()
    }

    fn by_address(&self) -> &ByAddress {
        self.by_address.get_or_init(|| ByAddress::of(&self.tables))
    }

    /// Return the number of functions, including aliases.
    pub fn len(&self) -> usize {
        self.by_address().functions.len()
    }

    /// Return true if there are no functions.
    pub fn is_empty(&self) -> bool {
        !self.tables.iter().any(|table| table.symbols().any(|(_, symbol)| table.is_function(symbol)))
    }

    /// Return the innermost function that covers this ELF virtual address. A symbol that does not cover the
    /// address is never used, even if it is the nearest.
    ///
    /// A function without a size covers only its first byte. The choice among several names at one address
    /// must not depend on how the file was stripped. The order of preference is: smallest function, exported
    /// before local, fewest leading underscores, global before weak, shortest name, alphabetical. So the result
    /// is `poll`, not `__poll` or `__GI___poll`.
    pub fn lookup(&self, svma: u64) -> Option<Symbol<'_>> {
        let begins_before = |id: &SymbolId| self.entry(*id).is_some_and(|entry| entry.address <= svma);
        let after = self.by_address().functions.partition_point(begins_before);
        let last = after.checked_sub(1)?;
        self.innermost(last, svma).or_else(|| self.sizeless(last, svma))
    }

    /// Search outward, starting at the last entry that begins at or before the address.
    fn innermost(&self, last: usize, svma: u64) -> Option<Symbol<'_>> {
        let index = self.by_address();
        let mut at = last;
        for _ in 0..limits::NESTING {
            let entry = self.entry(*index.functions.get(at)?)?;
            if svma < entry.end() {
                let named = self.best_alias(at, |e| svma < e.end());
                if named.is_some() {
                    return named;
                }
            }
            at = *index.outer.get(at)? as usize;
        }
        None
    }

    fn entry(&self, id: SymbolId) -> Option<Entry> {
        id.find(&self.tables).map(|(_, symbol)| Entry::new(id, symbol))
    }

    fn sizeless(&self, last: usize, svma: u64) -> Option<Symbol<'_>> {
        let entry = self.entry(*self.by_address().functions.get(last)?)?;
        (entry.address == svma).then(|| self.best_alias(last, |e| e.size == 0)).flatten()
    }

    /// Return the best name among the entries at the address of entry `at` that pass `fits`; smaller
    /// functions are preferred.
    fn best_alias(&self, at: usize, fits: impl Fn(&Entry) -> bool) -> Option<Symbol<'_>> {
        let functions = &self.by_address().functions;
        let address = self.entry(*functions.get(at)?)?.address;
        let same = |id: &SymbolId| self.entry(*id).filter(|entry| entry.address == address);
        let before = functions.get(..at)?.iter().rev().map_while(same);
        let after = functions.get(at..)?.iter().map_while(same);
        let mut best: Option<(Rank<'_>, u64)> = None;
        for entry in before.chain(after).take(limits::ALIASES).filter(|e| fits(e)) {
            let Some((rank, size)) = self.rank(entry) else {
                continue;
            };
            if best.as_ref().is_none_or(|(other, _)| rank < *other) {
                best = Some((rank, size));
            }
        }
        best.map(|(rank, size)| Symbol { name: rank.name, address, size })
    }

    fn rank(&self, entry: Entry) -> Option<(Rank<'_>, u64)> {
        let (table, symbol) = entry.symbol.find(&self.tables)?;
        let name = table.name(symbol)?;
        let binding = symbol.binding();
        let rank = Rank {
            size: entry.size,
            local: binding == Binding::Local,
            underscores: leading_underscores(name),
            binding,
            length: name.len(),
            name,
        };
        Some((rank, symbol.size))
    }

    /// Return the ELF virtual address and size in bytes of the function or variable with this mangled name.
    ///
    /// Also returns `None` if several local symbols have the name and none is exported: see
    /// [`SymbolTable::find_many`].
    pub fn find(&self, name: &str) -> Option<(u64, u64)> {
        match self.find_many(&[name]).remove(name) {
            Some(Found::One { address, size }) => Some((address, size)),
            _ => None,
        }
    }

    /// Find many names in one pass over the table (1 to 10 ms for a server). Names that are not found are
    /// missing from the result.
    pub fn find_many<'name>(&self, names: &[&'name str]) -> FxHashMap<&'name str, Found> {
        let wanted: FxHashMap<&str, &'name str> = names.iter().map(|n| (*n, *n)).collect();
        let filter = PrefixFilter::of(names.iter().copied());
        let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
        let mut best: FxHashMap<&'name str, (Reverse<Claim>, Found)> = FxHashMap::default();
        for table in &self.tables {
            for (index, symbol) in table.symbols() {
                if !symbol.is_definition() || !table.may_match(symbol, &filter) {
                    continue;
                }
                let name = table.short_name(symbol, longest).and_then(|n| wanted.get(n));
                if let Some(name) = name {
                    let claim = Claim::of(table, index, symbol, name);
                    let offered = Found::of(symbol);
                    best.entry(name)
                        .and_modify(|(c, f)| take_better(c, f, claim, offered))
                        .or_insert((Reverse(claim), offered));
                }
            }
        }
        best.into_iter().map(|(k, (_, found))| (k, found)).collect()
    }

    /// Return, for each of these ELF virtual addresses, the variable that covers it. If several variables
    /// cover an address, the one with the highest start address is returned.
    pub fn variables_at(&self, addresses: &[u64]) -> Vec<Option<Named>> {
        let mut found: Vec<Option<Named>> = vec![None; addresses.len()];
        for table in &self.tables {
            for (_, symbol) in table.symbols() {
                let range = symbol.address..symbol.address.saturating_add(symbol.size);
                if !symbol.is_definition() || table.is_function(symbol) {
                    continue;
                }
                for (known, _) in found.iter_mut().zip(addresses).filter(|(_, one)| range.contains(one)) {
                    if known.as_ref().is_some_and(|known| known.address >= symbol.address) {
                        continue;
                    }
                    let name = table.name(symbol).unwrap_or_default().to_owned();
                    *known = Some(Named { name, address: symbol.address, size: symbol.size, is_code: false });
                }
            }
        }
        found
    }

    /// List all functions and variables whose names begin with one of these prefixes, without duplicates and
    /// without IFUNC resolvers. At most [`limits::NAMED_BYTES`] are returned.
    pub fn named(&self, prefixes: &[String]) -> Vec<Named> {
        let filter = PrefixFilter::of(prefixes.iter().map(String::as_str));
        let wanted = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()));
        let (mut found, mut bytes) = (Vec::new(), 0);
        for table in &self.tables {
            for (_, symbol) in table.symbols() {
                if !symbol.is_definition() || symbol.is_resolver() || !table.may_match(symbol, &filter) {
                    continue;
                }
                if bytes >= limits::NAMED_BYTES {
                    break;
                }
                if let Some(name) = table.name(symbol).filter(|name| wanted(name)) {
                    let (name, is_code) = (name.to_owned(), table.is_function(symbol));
                    bytes += limits::NAMED_ENTRY + name.len();
                    found.push(Named { name, address: symbol.address, size: symbol.size, is_code });
                }
            }
        }
        found.sort_by(|a, b| (&a.name, a.address).cmp(&(&b.name, b.address)));
        found.dedup();
        found
    }
}

/// The name and address of a function or variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The mangled name without a version.
    pub name: String,
    /// The ELF virtual address.
    pub address: u64,
    /// Size in bytes.
    pub size: u64,
    /// True for a function, false for a variable.
    pub is_code: bool,
}

/// The result of a lookup by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Exactly one function or variable.
    One {
        /// The ELF virtual address.
        address: u64,
        /// Size in bytes.
        size: u64,
    },
    /// Several local functions or variables from different source files have this name.
    Ambiguous,
}

impl Found {
    fn of(symbol: RawSymbol) -> Self {
        Self::One { address: symbol.address, size: symbol.size }
    }
}

/// The rank of a symbol among symbols with the same name; the lowest rank is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    old_version: bool,
    binding: Binding,
}

impl Claim {
    fn of(table: &RawTable, index: u32, symbol: RawSymbol, name: &str) -> Self {
        Self { old_version: table.is_old_version(index, symbol, name), binding: symbol.binding() }
    }
}

fn take_better(claim: &mut Reverse<Claim>, found: &mut Found, other: Claim, offered: Found) {
    if Reverse(other) > *claim {
        (*claim, *found) = (Reverse(other), offered);
    } else if other == claim.0 && *found != offered {
        *found = Found::Ambiguous;
    }
}

/// The rank of a name among names at the same address; the lowest rank is chosen.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'table> {
    size: u32,
    local: bool,
    underscores: usize,
    binding: Binding,
    length: usize,
    name: &'table str,
}

fn leading_underscores(name: &str) -> usize {
    if name.starts_with("_Z") {
        return 0;
    }
    name.bytes().take_while(|byte| *byte == b'_').count()
}
