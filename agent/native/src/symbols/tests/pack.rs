//! Tests that symbol packs survive a round trip, and that malformed, forged and mismatched packs are
//! rejected.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::corrupt::{MAX_NS, Random, cpu_ns};
use super::fixture::{COUNT, Fixture, HIDDEN};
use crate::symbols::pack::{self, Pack, PackError, Sealed};
use crate::symbols::{DebugSearch, Source, SymbolTable, load};

const ABOUT: &[u8] = br#"{"server": "shop 1.0"}"#;
const LAYOUT: &[u8] = br#"{"members": {}}"#;

/// Wrap the data in a zlib stream of stored blocks (RFC 1950 and 1951).
fn zlib(data: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let blocks = data.chunks(0xffff);
    let last = blocks.len().saturating_sub(1);
    for (number, block) in blocks.enumerate() {
        let size = block.len() as u16;
        stream.push(u8::from(number == last));
        stream.extend(size.to_le_bytes());
        stream.extend((!size).to_le_bytes());
        stream.extend_from_slice(block);
    }
    let (mut a, mut b) = (1_u32, 0_u32);
    for byte in data {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    stream.extend((b << 16 | a).to_be_bytes());
    stream
}

fn sealed(build_id: &str, payload: &[u8]) -> Vec<u8> {
    pack::seal(build_id, &zlib(payload), payload.len()).unwrap()
}

struct Shop {
    fixture: Fixture,
    build_id: String,
    payload: Vec<u8>,
}

impl Shop {
    fn new() -> Self {
        let fixture = Fixture::new(&["-Wl,--build-id=sha1"]);
        fixture.split();
        let debug = fixture.open("prog.debug");
        let payload = pack::payload(&debug, ABOUT, LAYOUT).unwrap();
        fs::create_dir(fixture.at("packs")).unwrap();
        Self { build_id: debug.build_id().unwrap(), fixture, payload }
    }

    fn place(&self) -> PathBuf {
        pack::path_of(&self.fixture.at("packs"), &self.build_id)
    }

    /// Write a pack to the path at which the loader looks for it, and return the path.
    fn put(&self, data: &[u8]) -> PathBuf {
        fs::write(self.place(), data).unwrap();
        self.place()
    }

    /// Load the symbols of the stripped program.
    fn load(&self) -> SymbolTable {
        let search = DebugSearch { packs: self.fixture.at("packs"), ..DebugSearch::default() };
        load(&self.fixture.open("stripped"), Path::new("/x"), &search)
    }

    fn refused(&self, data: &[u8]) -> String {
        self.put(data);
        let table = self.load();
        assert_eq!(table.source, Source::Dynsym, "the next source is used");
        table.problem.unwrap()
    }
}

fn opened(data: Vec<u8>) -> Result<Pack, String> {
    let words = |error: PackError| error.reason;
    Sealed::parse(data, Path::new("x.pack"))?.unpack().map_err(words)
}

#[test]
fn a_stripped_program_with_a_pack_has_all_names() {
    let shop = Shop::new();
    shop.put(&sealed(&shop.build_id, &shop.payload));
    let (ours, whole) = (shop.load(), shop.fixture.load("prog"));
    assert_eq!(
        (ours.source, ours.path.clone(), ours.problem.clone()),
        (Source::Pack, Some(shop.place()), None)
    );
    assert_eq!(ours.len(), whole.len());
    for address in 0..0x6000 {
        assert_eq!(ours.lookup(address), whole.lookup(address), "{address:#x}");
    }
    let names = [COUNT, HIDDEN, "exported_variable", "plain", "__plain", "sizeless_fn", "_ZL5twicei", "main"];
    assert_eq!(ours.find_many(&names), whole.find_many(&names));
    let functions = |table: &SymbolTable| -> Vec<_> {
        table.named(&[String::new()]).into_iter().filter(|named| named.is_code).collect()
    };
    assert_eq!(functions(&ours), functions(&whole));
}

#[test]
fn the_content_survives_the_round_trip() {
    let shop = Shop::new();
    let pack = opened(sealed(&shop.build_id, &shop.payload)).unwrap();
    assert_eq!((&*pack.about, &*pack.layout), (ABOUT, LAYOUT));
    assert_eq!(pack.build_id, shop.build_id);
    assert!(pack.functions > 10 && pack.variables > 0);
    assert_eq!(pack.unpacked, shop.payload.len() as u64);
}

#[test]
fn a_debug_file_is_preferred_to_a_pack() {
    let shop = Shop::new();
    shop.put(b"not even looked at");
    let id = &shop.build_id;
    shop.fixture
        .put("prog.debug", &shop.fixture.at(&format!("dirs/.build-id/{}/{}.debug", &id[..2], &id[2..])));
    let search = DebugSearch { packs: shop.fixture.at("packs"), ..shop.fixture.search() };
    let table = load(&shop.fixture.open("stripped"), Path::new("/x"), &search);
    assert_eq!((table.source, table.problem), (Source::DebugFile, None));
}

#[test]
fn a_pack_of_another_build_is_refused() {
    let shop = Shop::new();
    let other = "00112233445566778899aabbccddeeff00112233";
    let problem = shop.refused(&sealed(other, &shop.payload));
    assert!(problem.contains(&format!("is for another build: it has build-id {other}")), "{problem}");
}

#[test]
fn malformed_packs_are_refused_with_a_reason() {
    let shop = Shop::new();
    let whole = sealed(&shop.build_id, &shop.payload);
    let mut newer = whole.clone();
    newer[8] = 2;
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let cases: [(&[u8], &str); 6] = [
        (b"", "is not a symbol pack, or is truncated"),
        (&[7; 4096], "is not a symbol pack"),
        (&newer, "has format 2, but this Innoscope reads format 1"),
        (&whole[..whole.len() - 1], "has the wrong size"),
        (&[&whole[..], b"x"].concat(), "has the wrong size"),
        (&flipped, "its checksum is wrong"),
    ];
    for (data, words) in cases {
        let problem = shop.refused(data);
        assert!(problem.contains(words) && problem.contains("symbols export"), "{problem}");
    }
}

#[test]
fn a_pack_writable_by_others_is_refused() {
    let shop = Shop::new();
    let place = shop.put(&sealed(&shop.build_id, &shop.payload));
    for mode in [0o666, 0o664, 0o646] {
        fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
        let error = Sealed::open(&place).unwrap_err().to_string();
        assert!(error.contains("is writable by others") && error.contains("chmod go-w"), "{error}");
    }
    fs::set_permissions(&place, Permissions::from_mode(0o644)).unwrap();
    assert!(Sealed::open(&place).is_ok());
}

#[test]
fn a_pack_that_is_not_a_regular_file_is_refused() {
    let shop = Shop::new();
    fs::create_dir(shop.place()).unwrap();
    assert_eq!(Sealed::open(&shop.place()).unwrap_err().reason, "not a regular file");
    fs::remove_dir(shop.place()).unwrap();
    shop.fixture.run("mkfifo", &[shop.place().to_str().unwrap()]);
    assert_eq!(Sealed::open(&shop.place()).unwrap_err().reason, "not a regular file");
}

#[test]
fn a_decompression_bomb_is_refused_before_unpacking() {
    let shop = Shop::new();
    let mut bomb = sealed(&shop.build_id, &shop.payload);
    bomb[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
    let problem = shop.refused(&with_valid_header(bomb));
    assert!(problem.contains("it would unpack to 4294967295 bytes"), "{problem}");
    let many =
        [&[0; 8][..], &4_u32.to_le_bytes(), &1_u32.to_le_bytes(), &u32::MAX.to_le_bytes(), &[0]].concat();
    assert_eq!(opened(sealed("aa", &many)).unwrap_err(), "is damaged: it would have 4294967295 symbols");
}

#[test]
fn a_build_id_never_leads_out_of_the_folder() {
    let shop = Shop::new();
    for bad in ["", "../x", "ABCD", "abc", "a/", "/etc/passwd"] {
        assert!(Sealed::find(&shop.fixture.at("packs"), bad).is_none(), "{bad}");
        assert!(pack::seal(bad, &[], 0).is_err() || bad.is_empty());
    }
}

/// Return a modified pack with the correct size and checksum in its header.
fn with_valid_header(mut data: Vec<u8>) -> Vec<u8> {
    if data.len() >= 24 {
        let size = data.len() as u32;
        data[16..20].copy_from_slice(&size.to_le_bytes());
        let checksum = crate::symbols::crc::crc32(&data[16..]);
        data[12..16].copy_from_slice(&checksum.to_le_bytes());
    }
    data
}

/// Open a pack and use all of its content; return true if it was accepted.
fn use_everything(data: Vec<u8>, random: &mut Random) -> bool {
    let start = cpu_ns();
    let opened = opened(data);
    if let Ok(pack) = &opened {
        let table = SymbolTable::new(Source::Pack, vec![pack.table()]);
        for _ in 0..8 {
            let _ = table.lookup(random.below(0x6000) as u64);
        }
        let _ = (table.find(COUNT), table.named(&["_ZN".to_owned()]));
    }
    let took = cpu_ns() - start;
    assert!(took < MAX_NS, "{took} ns");
    opened.is_ok()
}

/// Return a corrupted copy: truncated, with repeated parts, or with bytes set to random or extreme values.
fn corrupted(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut data = original.to_vec();
    match random.below(5) {
        0 => data.truncate(random.below(original.len())),
        1 => data.extend_from_within(random.below(original.len())..),
        _ => {
            // The start of the data contains sizes and counts.
            let within = if random.below(2) == 0 { original.len() } else { original.len().min(160) };
            for _ in 0..=random.below(4) {
                let at = random.below(within);
                data[at] = [0, 1, 0x7f, 0x80, 0xff, random.below(256) as u8][random.below(6)];
            }
        }
    }
    data
}

#[test]
fn malformed_packs_do_not_panic() {
    let shop = Shop::new();
    let whole = sealed(&shop.build_id, &shop.payload);
    let mut random = Random(0x5851_f42d_4c95_7f2d);
    let mut taken = 0;
    for round in 0..15_000 {
        let data = match round % 3 {
            0 => corrupted(&whole, &mut random),
            1 => with_valid_header(corrupted(&whole, &mut random)),
            _ => sealed(&shop.build_id, &corrupted(&shop.payload, &mut random)),
        };
        let is_ours = data == whole;
        let is_taken = use_everything(data, &mut random);
        assert!(
            !is_taken || is_ours || round % 3 != 0,
            "round {round}: the checksum did not detect the change"
        );
        taken += u32::from(is_taken);
    }
    assert!(taken > 100, "only {taken} packs were accepted");
}
