//! Tests the order in which sources of names are used.

use std::fs;
use std::path::Path;

use super::fixture::{COUNT, Fixture, HIDDEN};
use crate::symbols::{DebugSearch, Source, find_debug_file, find_dwarf, load};

fn build_id_path(fixture: &Fixture) -> std::path::PathBuf {
    let id = fixture.open("prog").build_id().unwrap();
    assert_eq!(id.len(), 40);
    fixture.at(&format!("dirs/.build-id/{}/{}.debug", &id[..2], &id[2..]))
}

#[test]
fn the_debug_file_is_found_by_build_id() {
    let fixture = Fixture::new(&["-Wl,--build-id=sha1"]);
    fixture.split();
    let place = build_id_path(&fixture);
    fixture.put("prog.debug", &place);
    let table = fixture.load("stripped");
    assert_eq!(table.source, Source::DebugFile);
    assert_eq!(table.path.as_deref(), Some(place.as_path()));
    assert_eq!(table.problem, None);
    assert_eq!(table.find(HIDDEN), fixture.load("prog").find(HIDDEN));
    let elf = fixture.open("stripped");
    let dwarf = find_dwarf(&elf, Path::new("/x"), &fixture.search()).unwrap();
    assert_eq!(dwarf.path(), place);
    assert!(dwarf.section(".text").is_none());
    assert!(!dwarf.has_dynsym());
}

#[test]
fn a_debug_file_of_another_build_is_refused() {
    let fixture = Fixture::new(&["-Wl,--build-id=sha1"]);
    fixture.split();
    let place = build_id_path(&fixture);
    fixture.run("g++", &["-g", "-Wl,--build-id=sha1", "-O2", "-o", "prog.debug", "main.cc", "a.cc", "b.cc"]);
    fixture.put("prog.debug", &place);
    let table = fixture.load("stripped");
    assert_eq!((table.source, table.path), (Source::Dynsym, None));
}

#[test]
fn the_debug_file_is_found_by_link_and_its_crc_is_checked() {
    let fixture = Fixture::new(&["-Wl,--build-id=none"]);
    fixture.split();
    fixture.run("objcopy", &["--add-gnu-debuglink=prog.debug", "stripped"]);
    let elf = fixture.open("stripped");
    assert_eq!(elf.build_id(), None);
    assert_eq!(elf.debuglink().unwrap().0, "prog.debug");
    let below = fixture.folder.strip_prefix("/").unwrap();
    let places = [
        fixture.at("prog.debug"),
        fixture.at(".debug/prog.debug"),
        fixture.at("dirs").join(below).join("prog.debug"),
    ];
    let mut now = fixture.at("prog.debug");
    for place in places {
        fixture.put(now.to_str().unwrap(), &place);
        let table = fixture.load("stripped");
        assert_eq!(table.path.as_deref(), Some(place.as_path()));
        assert!(table.find(HIDDEN).is_some());
        now = place;
    }
    let mut data = fs::read(&now).unwrap();
    data.push(0);
    fs::write(&now, data).unwrap();
    assert_eq!(fixture.load("stripped").source, Source::Dynsym);
}

#[test]
fn downloaded_files_and_the_root_of_the_process_are_searched() {
    let fixture = Fixture::new(&["-Wl,--build-id=sha1"]);
    fixture.split();
    let elf = fixture.open("stripped");
    let fetched = DebugSearch {
        fetched: [(elf.build_id().unwrap(), fixture.at("prog.debug"))].into(),
        ..DebugSearch::default()
    };
    let table = load(&elf, Path::new("/usr/sbin/x"), &fetched);
    assert_eq!(table.path, Some(fixture.at("prog.debug")));
    let in_root = DebugSearch {
        dirs: vec!["/dirs".into()],
        root: Some(fixture.folder.clone()),
        ..DebugSearch::default()
    };
    let place = build_id_path(&fixture);
    fixture.put("prog.debug", &place);
    let found = find_debug_file(&elf, Path::new("/usr/sbin/x"), &in_root);
    assert_eq!(found, Some(place));
}

#[test]
fn a_fifo_in_place_of_a_debug_file_does_not_block() {
    let fixture = Fixture::new(&["-Wl,--build-id=sha1"]);
    fixture.split();
    let place = build_id_path(&fixture);
    fs::create_dir_all(place.parent().unwrap()).unwrap();
    fixture.run("mkfifo", &[place.to_str().unwrap()]);
    assert_eq!(fixture.load("stripped").source, Source::Dynsym);
}

/// Create `with-mini` by adding `.gnu_debugdata` to `stripped`, the way distributions do.
pub fn add_debugdata(fixture: &Fixture) {
    fixture.split();
    fs::write(fixture.at("keep"), format!("{HIDDEN}\nouter_fn\ninner_fn\n")).unwrap();
    fixture.run("objcopy", &["-S", "--keep-symbols=keep", "prog.debug", "mini"]);
    fixture.run("xz", &["mini"]);
    let add = "--add-section=.gnu_debugdata=mini.xz";
    fixture.run("objcopy", &[add, "stripped", "with-mini"]);
}

#[test]
fn debugdata_and_dynsym_are_combined() {
    let fixture = Fixture::new(&[]);
    add_debugdata(&fixture);
    assert!(fixture.open("with-mini").has_debugdata());
    let table = fixture.load("with-mini");
    assert_eq!((table.source, &table.problem), (Source::Debugdata, &None));
    for name in [HIDDEN, COUNT, "exported_variable"] {
        assert_eq!(table.find(name), fixture.load("prog").find(name), "{name}");
    }
    let (address, _) = table.find(HIDDEN).unwrap();
    assert_eq!(table.lookup(address).unwrap().name, HIDDEN);
}

#[test]
fn malformed_debugdata_is_reported_and_skipped() {
    let fixture = Fixture::new(&[]);
    add_debugdata(&fixture);
    let mut data = fs::read(fixture.at("mini.xz")).unwrap();
    data.truncate(data.len() / 2);
    fs::write(fixture.at("half.xz"), data).unwrap();
    let add = "--add-section=.gnu_debugdata=half.xz";
    fixture.run("objcopy", &[add, "stripped", "broken"]);
    let table = fixture.load("broken");
    assert_eq!(table.source, Source::Dynsym);
    assert!(table.find(COUNT).is_some());
    let problem = table.problem.unwrap();
    assert!(problem.ends_with("broken: .gnu_debugdata: not a complete xz stream"), "{problem}");
}

#[test]
fn dynsym_is_the_last_source() {
    let fixture = Fixture::new(&[]);
    fixture.split();
    fs::remove_file(fixture.at("prog.debug")).unwrap();
    let table = fixture.load("stripped");
    assert_eq!((table.source, &table.problem), (Source::Dynsym, &None));
    assert_eq!(table.find(COUNT), fixture.load("prog").find(COUNT));
    assert_eq!(table.find(HIDDEN), None);
}
