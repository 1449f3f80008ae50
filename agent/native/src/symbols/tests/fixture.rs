//! Compiles small programs, and strips and splits them as distributions do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::symbols::{DebugSearch, ElfFile, SymbolTable, load};

/// The mangled name of an exported function.
pub const COUNT: &str = "_ZN4shop4Till5countEi";
/// The mangled name of a local function, which `.dynsym` does not contain.
pub const HIDDEN: &str = "_ZL6hiddeni";

const SOURCE: &str = r#"
namespace shop {
struct Till { int total; int count(int) __attribute__((noinline)); };
static inline __attribute__((always_inline)) int innermost(volatile int *p) { return *p + 1; }
static inline __attribute__((always_inline)) int between(volatile int *p) { return innermost(p) * 3; }
int Till::count(int x) { volatile int v = x; total += between(&v); return total; }
}
static int __attribute__((noinline)) hidden(int x) { volatile int v = x; return v - 7; }
extern "C" int __plain(int x) { return hidden(x) * 5; }
extern "C" int plain(int) __attribute__((weak, alias("__plain")));
asm(".text\n.balign 64\n.globl outer_fn\n.type outer_fn,%function\nouter_fn:\n.skip 16,0\n"
    ".type inner_fn,%function\ninner_fn:\n.skip 16,0\n.size inner_fn,.-inner_fn\n"
    ".skip 16,0\n.size outer_fn,.-outer_fn\n"
    ".balign 64\n.globl sizeless_fn\n.type sizeless_fn,%function\nsizeless_fn:\n.skip 64,0\n");
extern "C" int exported_variable; int exported_variable = 3;
extern int twice_a(int), twice_b(int);
int main(int argc, char **) { shop::Till t{argc}; return t.count(plain(argc)) + twice_a(1) + twice_b(2); }
"#;

/// A directory with compiled programs, which is removed on drop.
pub struct Fixture {
    pub folder: PathBuf,
}

impl Fixture {
    /// Compile `prog` with debug information and these additional options.
    pub fn new(options: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("innoscope-symbols-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let this = Self { folder };
        fs::write(this.at("main.cc"), SOURCE).unwrap();
        for (file, caller) in [("a.cc", "twice_a"), ("b.cc", "twice_b")] {
            let local = "static int __attribute__((noinline)) twice(int x) { volatile int v = x; return v; }";
            let text = format!("{local}\nint {caller}(int x) {{ return twice(x) + 1; }}\n");
            fs::write(this.at(file), text).unwrap();
        }
        let always = ["-g", "-O1", "-rdynamic", "-o", "prog", "main.cc", "a.cc", "b.cc"];
        this.run("g++", &[options, &always].concat());
        this
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Run a tool in the directory.
    pub fn run(&self, tool: &str, arguments: &[&str]) {
        let mut command = Command::new(tool);
        let status = command.args(arguments).current_dir(&self.folder).status();
        assert!(status.unwrap().success(), "{tool} {arguments:?}");
    }

    /// Split `prog` into `stripped` and `prog.debug`.
    pub fn split(&self) {
        self.run("objcopy", &["--only-keep-debug", "prog", "prog.debug"]);
        self.run("strip", &["-o", "stripped", "prog"]);
    }

    /// Move a file, and create the parent directories.
    pub fn put(&self, from: &str, to: &Path) {
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(self.at(from), to).unwrap();
    }

    pub fn open(&self, name: &str) -> Arc<ElfFile> {
        ElfFile::open(&self.at(name)).unwrap()
    }

    /// Load the symbols of a file. Debug files are searched for in the subfolder `dirs/`.
    pub fn load(&self, name: &str) -> SymbolTable {
        load(&self.open(name), &self.at(name), &self.search())
    }

    pub fn search(&self) -> DebugSearch {
        DebugSearch { dirs: vec![self.at("dirs")], ..DebugSearch::default() }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        // Errors are ignored: a leftover directory in the system's temporary directory does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
