//! Demangles C++ names to a short readable form.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};

use cpp_demangle::error::Error;
use cpp_demangle::{DemangleNodeType, DemangleOptions, DemangleWrite, OwnedSymbol, ParseOptions, Symbol};

/// Maximum length of a mangled name, in bytes; longer names are returned unchanged.
const MAX_MANGLED: usize = 2048;
/// Maximum number of bytes written while a name is demangled; beyond that, the name is returned unchanged.
const MAX_WRITTEN: usize = 32 << 10;
/// Maximum length of template arguments between `<` and `>`, in bytes; longer ones become `<...>`.
const MAX_ARGUMENTS: usize = 40;
/// Recursion limits, in the order in which they are tried. Most names need only the first; even the last one
/// cannot overflow the stack.
const DEPTHS: [u32; 5] = [32, 40, 48, 56, 62];
/// A name whose parse fails after more CPU time (ns) than this is assumed to be crafted to waste time. It
/// is not parsed again with a deeper limit, which could cost 16 times as much.
const MAX_PARSE_NS: i64 = 300_000;
/// Once failed parses of such names have cost this much CPU time (ns) in total, only the first recursion
/// limit is tried.
const MAX_WASTED_NS: i64 = 10_000_000;
static WASTED_NS: AtomicI64 = AtomicI64::new(0);

/// Demangle a name, without its parameter list and return type: `handle_one_connection`, `THD::enter_cond`.
///
/// Short template arguments are kept (`ut::vector<int>`); longer ones become `<...>`, innermost first.
/// Suffixes of functions that the compiler split or specialized are written as in `c++filt`: `foo [clone
/// .part.3]`. Names that are not C++, malformed, longer than 2 KiB, or crafted to be expensive are returned
/// unchanged.
pub fn demangle(name: &str) -> String {
    if !name.starts_with("_Z") || name.len() > MAX_MANGLED {
        return name.to_owned();
    }
    let (mangled, clones) = name.split_at(name.find('.').unwrap_or(name.len()));
    let (prefix, mangled) = thunk(mangled);
    let Some(plain) = demangle_plain(&mangled) else {
        return name.to_owned();
    };
    let clones = split_clones(clones).map(|clone| format!(" [clone {clone}]"));
    format!("{prefix}{plain}{}", clones.collect::<String>())
}

fn demangle_plain(mangled: &str) -> Option<String> {
    // GCC before 5 (default: `-fabi-version=2`) omits the underscore in template arguments that name a
    // variable or function. `-fabi-version=3` fixes this. MariaDB 11.4.5, built with GCC 4.8.5, has such names.
    let repaired = || mangled.contains("LZ").then(|| mangled.replace("LZ", "L_Z"));
    let symbol = parse(mangled.as_bytes()).or_else(|| parse(repaired()?.as_bytes()))?;
    let options = DemangleOptions::new().no_params().no_return_type().hide_expression_literal_types();
    let mut out = Compact::default();
    symbol.structured_demangle(&mut out, &options).ok()?;
    Some(out.text.replace(", >", ">")) // such commas come from an empty parameter pack
}

/// Parse with the smallest recursion limit that suffices. Because the parser backtracks, every second level
/// doubles the cost of a malformed name.
fn parse(mangled: &[u8]) -> Option<OwnedSymbol> {
    for depth in DEPTHS {
        if depth > DEPTHS[0] && WASTED_NS.load(Ordering::Relaxed) > MAX_WASTED_NS {
            return None;
        }
        let start = cpu_time();
        let options = ParseOptions::default().recursion_limit(depth);
        match Symbol::new_with_options(mangled.to_vec(), &options) {
            Ok(symbol) => return Some(symbol),
            Err(error) => {
                let took = cpu_time() - start;
                if took > MAX_PARSE_NS {
                    WASTED_NS.fetch_add(took, Ordering::Relaxed);
                    return None;
                }
                if !matches!(error, Error::TooMuchRecursion) {
                    return None;
                }
            }
        }
    }
    None
}

/// Return the CPU time of this thread in ns. Unlike wall-clock time, it does not depend on the load of the
/// machine.
fn cpu_time() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec. The call cannot fail with this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Split a name into the description of a thunk and the name of its target: `_ZThn16_N3Foo3barEv` is a jump
/// to `_ZN3Foo3barEv`.
fn thunk(mangled: &str) -> (&'static str, String) {
    let virtual_thunk = mangled.strip_prefix("_ZTv").and_then(after_offset);
    if let Some(target) = virtual_thunk.and_then(after_offset) {
        return ("virtual thunk to ", format!("_Z{target}"));
    }
    if let Some(target) = mangled.strip_prefix("_ZTh").and_then(after_offset) {
        return ("non-virtual thunk to ", format!("_Z{target}"));
    }
    ("", mangled.to_owned())
}

/// Skip a number (`n` is its minus sign) and the underscore that terminates it; return the text after it.
fn after_offset(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('n').unwrap_or(text);
    digits.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix('_')
}

/// Split `.isra.0.cold` into `.isra.0` and `.cold`: each suffix begins with a dot that is not followed by a
/// digit.
fn split_clones(mut rest: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let next = rest.as_bytes().windows(2).skip(1);
        let mut next = next.map(|pair| pair[0] == b'.' && !pair[1].is_ascii_digit());
        let end = next.position(|begins| begins).map_or(rest.len(), |at| at + 1);
        let (clone, tail) = rest.split_at_checked(end)?;
        rest = tail;
        (!clone.is_empty()).then_some(clone)
    })
}

/// Collects the demangled text and shortens template arguments when they end.
#[derive(Default)]
struct Compact {
    text: String,
    written: usize,
    /// The offset in `text` of each open part of the name; `None` for parts that are not template arguments.
    open: Vec<Option<usize>>,
}

impl DemangleWrite for Compact {
    fn push_demangle_node(&mut self, kind: DemangleNodeType) {
        let is_arguments = kind == DemangleNodeType::TemplateArgs;
        self.open.push(is_arguments.then_some(self.text.len()));
    }

    fn write_string(&mut self, text: &str) -> fmt::Result {
        // Count calls too, because a hostile name can cause many calls that write nothing.
        self.written += text.len() + 1;
        if self.written > MAX_WRITTEN {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }

    fn pop_demangle_node(&mut self) {
        let Some(Some(start)) = self.open.pop() else {
            return;
        };
        if self.text.len() > start + MAX_ARGUMENTS {
            self.text.truncate(start);
            self.text.push_str("...");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_parameters_and_keeps_the_class() {
        let cases = [
            ("_Z21handle_one_connectionPv", "handle_one_connection"),
            ("_ZN3THD10enter_condEP4cond", "THD::enter_cond"),
            ("_ZN1N12_GLOBAL__N_11AlsEi", "N::(anonymous namespace)::A::operator<<"),
            ("_ZNK1N12_GLOBAL__N_11AclEi", "N::(anonymous namespace)::A::operator()"),
            ("_ZN1N4tmplIlLi7EEET_S1_St8functionIFviS1_EE", "N::tmpl<long, 7>"),
            ("_ZNKSt6vectorIiSaIiEE4sizeEv", "std::vector<int, std::allocator<int> >::size"),
            ("_ZThn16_N3Foo3barEv", "non-virtual thunk to Foo::bar"),
            ("_ZTv0_n24_N3Foo3barEv", "virtual thunk to Foo::bar"),
        ];
        for (mangled, expected) in cases {
            assert_eq!(demangle(mangled), expected);
        }
    }

    #[test]
    fn shortens_long_template_arguments() {
        let name = "_ZNKSt4lessINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEEclERKS5_S8_";
        let compact = demangle(name);
        assert_eq!(compact, "std::less<std::__cxx11::basic_string<...> >::operator()");
    }

    #[test]
    fn shows_clones() {
        let cases = [
            ("_Z3foov.part.3", "foo [clone .part.3]"),
            ("_Z3foov.isra.0.cold", "foo [clone .isra.0] [clone .cold]"),
            ("_ZL3foov.constprop.0.isra.1", "foo [clone .constprop.0] [clone .isra.1]"),
            ("_Z3foov.llvm.123.4", "foo [clone .llvm.123.4]"),
            ("_Z3foov.", "foo [clone .]"),
        ];
        for (mangled, expected) in cases {
            assert_eq!(demangle(mangled), expected);
        }
    }

    #[test]
    fn returns_other_names_unchanged() {
        let long = format!("_Z{}", "3foo".repeat(2000));
        for name in ["", "main", "futex_wait.part.0", "_Z", "_ZN", "_Zé", long.as_str()] {
            assert_eq!(demangle(name), name);
        }
    }

    /// Demangle the names of 128 frames. The names differ, and each makes the parser backtrack.
    #[test]
    fn a_stack_of_hostile_names_takes_less_than_50_ms() {
        for unit in ["cvT_I", "StI"] {
            for times in 4..40 {
                WASTED_NS.store(0, Ordering::Relaxed);
                let began = cpu_time();
                for frame in 0..128 {
                    demangle(&format!("_Z{}ET{frame}_", unit.repeat(times)));
                }
                let took = cpu_time() - began;
                assert!(took < 50_000_000, "{unit} {times} times: {took} ns");
            }
        }
    }
}
