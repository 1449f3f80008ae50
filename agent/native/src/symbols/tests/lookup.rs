//! Tests which name is chosen for an address.

use super::fixture::{COUNT, Fixture, HIDDEN};
use crate::symbols::{ElfFile, Found, Source, SymbolTable, load_own};

fn name_at(table: &SymbolTable, address: u64) -> Option<&str> {
    table.lookup(address).map(|symbol| symbol.name)
}

#[test]
fn a_name_covers_exactly_its_function() {
    let fixture = Fixture::new(&[]);
    let table = fixture.load("prog");
    assert_eq!((table.source, &table.problem), (Source::Symtab, &None));
    for name in [COUNT, HIDDEN] {
        let (address, size) = table.find(name).unwrap();
        assert!(size > 1);
        let symbol = table.lookup(address + size - 1).unwrap();
        assert_eq!((symbol.name, symbol.address, symbol.size), (name, address, size));
        assert_ne!(name_at(&table, address + size), Some(name));
        assert_ne!(name_at(&table, address - 1), Some(name));
    }
    assert_eq!(name_at(&table, 0), None);
    assert_eq!(name_at(&table, u64::MAX), None);
}

#[test]
fn the_innermost_nested_function_is_returned() {
    let fixture = Fixture::new(&[]);
    let table = fixture.load("prog");
    let (outer, size) = table.find("outer_fn").unwrap();
    assert_eq!(size, 48);
    let expected = [(0, "outer_fn"), (16, "inner_fn"), (31, "inner_fn"), (32, "outer_fn")];
    for (offset, name) in expected {
        assert_eq!(name_at(&table, outer + offset), Some(name), "+{offset}");
    }
    assert_eq!(name_at(&table, outer + 48), None);
}

#[test]
fn a_function_without_a_size_covers_only_its_first_byte() {
    let fixture = Fixture::new(&[]);
    let table = fixture.load("prog");
    let (address, size) = table.find("sizeless_fn").unwrap();
    assert_eq!(size, 0);
    assert_eq!(name_at(&table, address), Some("sizeless_fn"));
    assert_eq!(name_at(&table, address + 1), None);
}

#[test]
fn the_alias_without_underscores_is_preferred_and_both_are_found() {
    let fixture = Fixture::new(&[]);
    let table = fixture.load("prog");
    let place = table.find("plain").unwrap();
    assert_eq!(table.find("__plain"), Some(place));
    assert_eq!(name_at(&table, place.0 + 1), Some("plain"));
}

#[test]
fn a_duplicate_local_name_is_ambiguous() {
    let fixture = Fixture::new(&[]);
    let table = fixture.load("prog");
    assert_eq!(table.find("_ZL5twicei"), None);
    let found = table.find_many(&["_ZL5twicei", "exported_variable", "no_such_name"]);
    assert_eq!(found.len(), 2);
    assert_eq!(found["_ZL5twicei"], Found::Ambiguous);
    assert!(matches!(found["exported_variable"], Found::One { size: 4, .. }));
}

#[test]
fn the_vdso_of_this_process_has_names() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let Some(line) = maps.lines().find(|line| line.ends_with("[vdso]")) else {
        return;
    };
    let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
    let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
    // SAFETY: the range is from /proc/self/maps, and the kernel keeps the vDSO mapped and readable until the
    // process exits.
    let image = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
    let elf = ElfFile::from_bytes(image.to_vec(), "[vdso]".as_ref()).unwrap();
    let table = load_own(&elf);
    assert_eq!(table.source, Source::Vdso);
    let suffix = "clock_gettime";
    let found = ["__vdso_", "__kernel_"].map(|prefix| table.find(&format!("{prefix}{suffix}")));
    let (address, _) = found.into_iter().flatten().next().unwrap();
    assert!(name_at(&table, address).unwrap().ends_with(suffix));
    assert!(elf.section(".eh_frame_hdr").is_some());
}
