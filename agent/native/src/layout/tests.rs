//! Against the compiler itself: the program prints where its members are.

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
ulint plain; volatile const double level = 1;
int main() {
  SHOW("pool.first", first); SHOW("pool.in_union", in_union); SHOW("pool.lists[2].count", lists[2].count);
  SHOW("pool.pct", pct); SHOW("pool.on", on); SHOW("pool.lint", lint); SHOW("pool.wrapped", wrapped);
  SHOW("pool.next", next); SHOW("pool.mode", mode); SHOW("slots", slots.m_counter); SHOW("newer", newer.m_counter);
  printf("whole 0 %zu\n", sizeof pool);
}
"#;

/// A unit that mentions more of the names and knows the type by name only.
const FORWARD: &str = "struct Pool; extern Pool *pools, *forward, pool; extern unsigned long plain;\n\
    void *f() { return plain ? (void *) pools : (void *) (forward ? forward : &pool); }\n";

struct Program {
    folder: PathBuf,
    /// What it says: `(path, offset, size)`.
    said: Vec<(String, u64, u64)>,
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
        let said = String::from_utf8(output).unwrap();
        let said = said.lines().map(|line| {
            let mut fields = line.split(' ');
            let mut number = |name: &str| fields.next().expect(name).to_owned();
            (number("path"), number("offset").parse().unwrap(), number("size").parse().unwrap())
        });
        Self { said: said.collect(), folder }
    }

    fn members(&self, paths: &[&str]) -> Vec<Result<Member, String>> {
        let elf = ElfFile::open(&self.folder.join("prog")).unwrap();
        members(&elf, &paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>())
    }

    fn one(&self, path: &str) -> Member {
        self.members(&[path]).remove(0).unwrap()
    }

    fn truth(&self, path: &str) -> (u64, u64) {
        let found = self.said.iter().find(|said| said.0 == path).unwrap();
        (found.1, found.2)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Best effort: what is left is in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn each_format(test: impl Fn(&Program)) {
    for format in ["-gdwarf-2", "-gdwarf-4", "-gdwarf-5"] {
        test(&Program::compiled(&format!("{format}-{:?}", std::thread::current().id()), &[format]));
    }
}

#[test]
fn members_are_where_the_compiler_put_them() {
    each_format(|program| {
        let asked: Vec<_> = program.said.iter().filter(|said| said.0.starts_with("pool.")).collect();
        let paths: Vec<_> = asked.iter().map(|said| said.0.as_str()).collect();
        assert_eq!(paths.len(), 9);
        for (said, found) in asked.iter().zip(program.members(&paths)) {
            let found = found.unwrap();
            assert_eq!((found.offsets, found.size, found.count), (vec![said.1], said.2, 1), "{}", said.0);
        }
    });
}

#[test]
fn namespaces_are_searched_and_what_follows_them() {
    each_format(|program| {
        let found = program.members(&["deep.wanted", "last.b", "pool.first"]);
        let offsets: Vec<_> = found.into_iter().map(|found| found.unwrap().offsets).collect();
        assert_eq!(offsets, [[8], [1], [0]]);
    });
}

#[test]
fn kinds_are_told_apart() {
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
        assert_eq!(program.one("pool").size, program.truth("whole").1);
    });
}

#[test]
fn pointers_are_followed_and_all_elements_meant() {
    each_format(|program| {
        let (count, _) = program.truth("pool.lists[2].count");
        assert_eq!(program.one("forward.lists[2].count").offsets, [0, count]);
        let (next, _) = program.truth("pool.next");
        assert_eq!(program.one("pools.next.lists[2].count").offsets, [0, next, count]);
        let all = program.one("pools[*].lists[2].count");
        assert_eq!((all.offsets, all.stride, all.count), (vec![0, count], program.truth("whole").1, 0));
        let lists = program.one("pool.lists[*].count");
        assert_eq!((lists.offsets, lists.stride, lists.count), (vec![count - 32], 16, 3));
    });
}

#[test]
fn counters_in_slots_are_their_sum() {
    each_format(|program| {
        let slots = program.one("pool.slots");
        let (begin, _) = program.truth("slots");
        assert_eq!((slots.offsets, slots.size, slots.stride, slots.count), (vec![begin + 64], 8, 64, 4));
        assert_eq!(slots.kind, Kind::Signed);
        let newer = program.one("pool.newer");
        let (begin, _) = program.truth("newer");
        assert_eq!((newer.offsets, newer.size, newer.stride, newer.count), (vec![begin], 8, 64, 3));
    });
}

#[test]
fn says_what_is_not_there() {
    each_format(|program| {
        for (path, reason) in [
            ("pool.gone", "this build has no member gone"),
            ("pool.shared", "this build has no member shared"),
            ("no_such_thing.a", "no debug information of no_such_thing"),
            ("pool.name", "it is an array"),
            ("pool.lists[3].count", "the array has 3 elements"),
            ("plain.a", "no structure"),
            ("plain[0]", "no array"),
            ("pools[*].next.first", "behind [*]"),
            ("a b", "not a path"),
        ] {
            let said = program.members(&[path]).remove(0).unwrap_err();
            assert!(said.contains(reason), "{path}: {said}");
        }
    });
}

#[test]
fn damaged_debug_information_gives_no_panic() {
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
