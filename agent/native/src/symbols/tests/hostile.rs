//! Tests symbol tables that are crafted to be expensive.

use super::corrupt::cpu_ns;
use crate::symbols::rawtable::{RawSymbol, RawTable};
use crate::symbols::table::{Source, SymbolTable};
use crate::symbols::{Bytes, limits};

/// Create the symbol of a global function in the code section.
fn function(address: u64, size: u64) -> RawSymbol {
    RawSymbol { name: 1, info: 0x12, section: 1, address, size }
}

/// Create a table of these functions, which all share one name of `name` bytes.
fn table(functions: impl Iterator<Item = RawSymbol>, name: usize) -> SymbolTable {
    let strings = [&[0][..], &vec![b'x'; name], &[0]].concat();
    let symbols: Vec<u8> = functions.flat_map(RawSymbol::bytes).collect();
    let table = RawTable::of(Bytes::from(symbols), Bytes::from(strings), vec![false, true]);
    SymbolTable::new(Source::Symtab, vec![table])
}

/// Assert that looking up 2,000 addresses, as on the stacks of a busy server, takes less than a second even
/// without optimization.
fn assert_quick(table: &SymbolTable, at: impl Fn(u64) -> u64) {
    let began = cpu_ns();
    for number in 0..2_000 {
        let _ = table.lookup(at(number));
    }
    let took = cpu_ns() - began;
    assert!(took < 1_000_000_000, "{took} ns");
}

#[test]
fn lookup_among_a_million_nested_functions_is_fast() {
    let count = 1 << 20;
    let nested = table((0..count).map(|at| function(0x1000 + at, 2 * (count - at))), 4_000);
    assert_quick(&nested, |number| 0x1000 + count + 500 * number);
}

#[test]
fn lookup_among_a_million_aliases_is_fast() {
    let aliases = table((0..1 << 20).map(|_| function(0x1000, 64)), limits::NAME - 1);
    assert_quick(&aliases, |number| 0x1000 + number % 64);
}

#[test]
fn too_long_names_are_ignored() {
    for (length, named) in [(limits::NAME - 1, true), (limits::NAME, false), (1 << 20, false)] {
        let table = table([function(0x1000, 8)].into_iter(), length);
        assert_eq!(table.lookup(0x1000).is_some(), named, "{length}");
    }
}

#[test]
fn lookup_by_prefix_is_limited() {
    for length in [3, 1_000] {
        let table = table((0..1 << 18).map(|at| function(0x1000 + at, 1)), length);
        let found = table.named(&["xx".to_owned()]);
        let bytes: usize = found.iter().map(|one| limits::NAMED_ENTRY + one.name.len()).sum();
        assert!((limits::NAMED_BYTES..=limits::NAMED_BYTES + 2_000).contains(&bytes), "{length}: {bytes}");
    }
}
