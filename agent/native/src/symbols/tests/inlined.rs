//! Tests inlined calls with uncompressed and compressed DWARF.

use super::fixture::{COUNT, Fixture};
use crate::symbols::Inlines;

/// Return the inlined calls at each address of `count`.
fn chains(fixture: &Fixture, file: &str) -> Vec<Vec<String>> {
    let (address, size) = fixture.load("prog").find(COUNT).unwrap();
    let inlines = Inlines::new(&fixture.open(file), None).unwrap();
    (address..address + size).map(|at| inlines.frames(at)).collect()
}

#[test]
fn inlined_calls_are_listed_innermost_first_without_the_containing_function() {
    for compression in ["-gz=none", "-gz=zlib", "-gz=zlib-gnu"] {
        let fixture = Fixture::new(&[compression]);
        fixture.split();
        for file in ["prog", "prog.debug"] {
            let chains = chains(&fixture, file);
            // GCC writes no mangled name for functions that exist only inlined, so the namespace may be
            // missing.
            let expected = ["innermost", "between"];
            let whole = chains.iter().any(|chain| {
                let mut pairs = chain.iter().zip(expected);
                chain.len() == 2 && pairs.all(|(name, end)| name.ends_with(end))
            });
            assert!(whole, "{compression} {file} {chains:?}");
            assert!(chains.iter().flatten().all(|name| !name.contains("Till")));
        }
    }
}

#[test]
fn missing_dwarf_is_an_error() {
    let fixture = Fixture::new(&[]);
    fixture.split();
    let error = Inlines::new(&fixture.open("stripped"), None).err();
    assert_eq!(error.as_deref(), Some("no debug information"));
}
