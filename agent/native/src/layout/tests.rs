//! Tests that the offsets read from DWARF match those that the compiler uses, which the test program prints.

use std::path::PathBuf;
use std::process::Command;

use super::{Kind, Member, members};
use crate::symbols::ElfFile;

const TYPES: &str = r"
#include <atomic>
#include <cstddef>
#include <cstdio>
typedef unsigned long ulint;
struct list_base { ulint count; void *start; };
struct Base { int first; union { ulint in_union; double also; }; };
template <typename T> struct Wrapped { std::atomic<T> m_counter; };
struct indexer {};
template <typename T, int N> struct ib_counter_t : indexer { void *policy; T m_counter[(N + 1) * 8]; };
struct alignas(64) slot { Wrapped<ulint> value; char padding[56]; };
template <int N> struct newer_counter_t { slot m_counter[N]; };
struct Pool : Base {
  static int shared; char name[5]; list_base lists[3]; double pct; std::atomic<bool> on; long lint;
  Wrapped<unsigned> wrapped; ib_counter_t<long, 4> slots; newer_counter_t<3> newer; Pool *next; enum { A } mode;
};
";

const MAIN: &str = r#"
#include "types.h"
#define SHOW(path, member) \
  printf("%s %zu %zu\n", path, (size_t) ((char *) &pool.member - (char *) &pool), sizeof(pool.member))
namespace outer { namespace inner { struct Deep { long skipped; int wanted; } deep; } struct Last { char a, b; } last; }
Pool pool, *pools = &pool, *forward = &pool;
int Pool::shared = 1;
ulint plain; volatile const double level = 1;
int main() {
  SHOW("pool.first", first); SHOW("pool.in_union", in_union); SHOW("pool.lists[2].count", lists[2].count);
  SHOW("pool.pct", pct); SHOW("pool.on", on); SHOW("pool.lint", lint); SHOW("pool.wrapped", wrapped);
  SHOW("pool.next", next); SHOW("pool.mode", mode); SHOW("slots", slots.m_counter); SHOW("newer", newer.m_counter);
  printf("whole 0 %zu\n", sizeof pool);
}
"#;

/// A compilation unit that mentions more of the wanted names than the main unit, but only declares the type.
const FORWARD: &str = "struct Pool; extern Pool *pools, *forward, pool; extern unsigned long plain;\n\
    void *f() { return plain ? (void *) pools : (void *) (forward ? forward : &pool); }\n";

struct Program {
    folder: PathBuf,
    /// The program's output: `(path, offset, size)`.
    printed: Vec<(String, u64, u64)>,
}

impl Program {
    fn compiled(name: &str, options: &[&str]) -> Self {
        let folder = std::env::temp_dir().join(format!("innoscope-layout-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("types.h", TYPES), ("main.cc", MAIN), ("forward.cc", FORWARD)] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        let mut compiler = Command::new("g++");
        compiler.args(options).args(["-g", "-o", "prog", "forward.cc", "main.cc"]).current_dir(&folder);
        assert!(compiler.status().unwrap().success());
        let output = Command::new(folder.join("prog")).output().unwrap().stdout;
        let printed = String::from_utf8(output).unwrap();
        let printed = printed.lines().map(|line| {
            let mut fields = line.split(' ');
            let mut number = |name: &str| fields.next().expect(name).to_owned();
            (number("path"), number("offset").parse().unwrap(), number("size").parse().unwrap())
        });
        Self { printed: printed.collect(), folder }
    }

    fn members(&self, paths: &[&str]) -> Vec<Result<Member, String>> {
        let elf = ElfFile::open(&self.folder.join("prog")).unwrap();
        members(&elf, &paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
    }

    fn one(&self, path: &str) -> Member {
        self.members(&[path]).remove(0).unwrap()
    }

    fn expected_place(&self, path: &str) -> (u64, u64) {
        let found = self.printed.iter().find(|printed| printed.0 == path).unwrap();
        (found.1, found.2)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Errors are ignored: a leftover directory in the system's temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn each_format(test: impl Fn(&Program)) {
    for format in ["-gdwarf-2", "-gdwarf-4", "-gdwarf-5"] {
        test(&Program::compiled(&format!("{format}-{:?}", std::thread::current().id()), &[format]));
    }
}

#[test]
fn offsets_and_sizes_match_the_compiler() {
    each_format(|program| {
        let members: Vec<_> =
            program.printed.iter().filter(|printed| printed.0.starts_with("pool.")).collect();
        let paths: Vec<_> = members.iter().map(|printed| printed.0.as_str()).collect();
        assert_eq!(paths.len(), 9);
        for (printed, found) in members.iter().zip(program.members(&paths)) {
            let found = found.unwrap();
            assert_eq!(
                (found.offsets, found.size, found.count),
                (vec![printed.1], printed.2, 1),
                "{}",
                printed.0
            );
        }
    });
}

#[test]
fn namespaces_and_the_declarations_after_them_are_searched() {
    each_format(|program| {
        let found = program.members(&["deep.wanted", "last.b", "pool.first"]);
        let offsets: Vec<_> = found.into_iter().map(|found| found.unwrap().offsets).collect();
        assert_eq!(offsets, [[8], [1], [0]]);
    });
}

#[test]
fn static_members_of_classes_have_mangled_names() {
    each_format(|program| {
        let found = program.one("_ZN4Pool6sharedE");
        assert_eq!((found.offsets, found.size, found.kind), (vec![0], 4, Kind::Signed));
    });
}

#[test]
fn kinds_are_distinguished() {
    each_format(|program| {
        let expected = [
            ("plain", Kind::Unsigned),
            ("level", Kind::Float),
            ("pool.first", Kind::Signed),
            ("pool.on", Kind::Unsigned),
            ("pool.mode", Kind::Unsigned),
            ("pool.next", Kind::Pointer),
            ("pool.pct", Kind::Float),
            ("Pool.lint", Kind::Signed),
            ("pool", Kind::Structure),
        ];
        let found = program.members(&expected.map(|(path, _)| path));
        for ((path, kind), found) in expected.into_iter().zip(found) {
            assert_eq!(found.unwrap().kind, kind, "{path}");
        }
        assert_eq!(program.one("pool").size, program.expected_place("whole").1);
    });
}

#[test]
fn pointers_are_followed_and_a_star_selects_all_elements() {
    each_format(|program| {
        let (count, _) = program.expected_place("pool.lists[2].count");
        assert_eq!(program.one("forward.lists[2].count").offsets, [0, count]);
        let (next, _) = program.expected_place("pool.next");
        assert_eq!(program.one("pools.next.lists[2].count").offsets, [0, next, count]);
        let all = program.one("pools[*].lists[2].count");
        assert_eq!(
            (all.offsets, all.stride, all.count),
            (vec![0, count], program.expected_place("whole").1, 0)
        );
        let lists = program.one("pool.lists[*].count");
        assert_eq!((lists.offsets, lists.stride, lists.count), (vec![count - 32], 16, 3));
    });
}

#[test]
fn counters_in_slots_are_summed() {
    each_format(|program| {
        let slots = program.one("pool.slots");
        let (begin, _) = program.expected_place("slots");
        assert_eq!((slots.offsets, slots.size, slots.stride, slots.count), (vec![begin + 64], 8, 64, 4));
        assert_eq!(slots.kind, Kind::Signed);
        let newer = program.one("pool.newer");
        let (begin, _) = program.expected_place("newer");
        assert_eq!((newer.offsets, newer.size, newer.stride, newer.count), (vec![begin], 8, 64, 3));
    });
}

#[test]
fn errors_say_what_is_missing() {
    each_format(|program| {
        for (path, reason) in [
            ("pool.gone", "this build has no member gone"),
            ("pool.shared", "this build has no member shared"),
            ("no_such_thing.a", "no debug information of no_such_thing"),
            ("pool.name", "it is an array"),
            ("pool.lists[3].count", "the array has 3 elements"),
            ("plain.a", "not a structure"),
            ("plain[0]", "not an array"),
            ("pools[*].next.first", "after [*]"),
            ("a b", "not a path"),
        ] {
            let error = program.members(&[path]).remove(0).unwrap_err();
            assert!(error.contains(reason), "{path}: {error}");
        }
    });
}

#[test]
fn malformed_debug_information_does_not_panic() {
    let program = Program::compiled("damaged", &["-gdwarf-4"]);
    let path = program.folder.join("prog");
    let intact = std::fs::read(&path).unwrap();
    let elf = ElfFile::open(&path).unwrap();
    let info = elf.section(".debug_info").unwrap().data;
    let start = intact.windows(info.len()).position(|window| window == &info[..]).unwrap();
    for (step, byte) in [(3, 0xff), (7, 0), (11, 0x80), (13, 1)] {
        let mut bytes = intact.clone();
        for at in (start + step..start + info.len()).step_by(step * 5) {
            bytes[at] = byte;
        }
        let elf = ElfFile::from_bytes(bytes, &path).unwrap();
        let paths = ["pool.lists[2].count", "pools[*].pct", "pool.slots"].map(str::to_owned);
        assert_eq!(members(&elf, &paths).len(), 3);
    }
}
