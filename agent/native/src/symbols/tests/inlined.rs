//! Tests inlined calls with uncompressed and compressed DWARF.

use std::path::Path;

use super::fixture::{COUNT, Fixture};
use crate::symbols::{Inlines, opening};

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
            // GCC writes no mangled names for functions that exist only inlined, so the namespace may be
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

#[test]
fn the_shared_debug_file_is_below_the_process_root() {
    let fixture = Fixture::new(&["-Wl,--build-id=sha1"]);
    let (shared, id) = (fixture.at("prog"), fixture.open("prog").build_id().unwrap());
    let id: Vec<u8> =
        (0..id.len()).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap()).collect();
    std::fs::write(fixture.at("link"), [shared.as_os_str().as_encoded_bytes(), b"\0", &id].concat()).unwrap();
    fixture.run("objcopy", &["--add-section", ".gnu_debugaltlink=link", "prog", "linked"]);

    let linked = fixture.open("linked");
    let in_root = |path: &Path| opening::in_root(Path::new("/proc/self/root"), path);

    assert_eq!(linked.shared_debug_file(linked.path()).unwrap().path(), shared);
    let found = linked.shared_debug_file(&in_root(linked.path())).unwrap();
    assert_eq!(found.path(), in_root(&shared));
}
