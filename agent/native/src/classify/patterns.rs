//! Matches names of functions and threads against the patterns in the catalog.

use std::sync::{Arc, LazyLock};

use regex::bytes::{Regex, RegexSet, RegexSetBuilder};
use rustc_hash::FxHashMap;

use crate::error::{Error, Kind, Result};

/// Suffixes that compilers and linkers add to function names.
static SUFFIX: LazyLock<regex::Regex> = LazyLock::new(|| {
    let suffix = r"(?:\.(?:isra|constprop|part|lto_priv|clone|cold|llvm)(?:\.[0-9]+)*| \[clone [^\]]*\]|@@?[A-Z]+[A-Za-z0-9_.]*|@plt)+$";
    regex::Regex::new(suffix).expect("the expression is valid")
});

/// Maximum number of cached results, one per name of a function or file, over all servers that this process has
/// observed.
pub(super) const MAX_CACHED_NAMES: usize = 65_536;
/// Maximum compiled size of the patterns in bytes. The catalog compiles to 2 MB; a catalog above the limit is
/// rejected.
const MAX_COMPILED_BYTES: usize = 64 << 20;
/// Maximum size in bytes of the DFA of all patterns, which is built lazily. Without a limit, it would take
/// 1.3 MB after 1,000 names. With this limit, matching a name takes 80 µs instead of 40 µs, but only
/// once for each name, because results are cached.
const MAX_DFA_BYTES: usize = 512 << 10;

/// Return a function's name without the suffixes that compilers and linkers add (`.isra.3`, `@plt`).
pub fn plain_name(function: &str) -> &str {
    SUFFIX.find(function).map_or(function, |suffix| &function[..suffix.start()])
}

/// Return one regular expression that matches whole names against a list of patterns. A pattern is a name,
/// which may contain the wildcards `*` and `?`, or `/a regular expression/`. An empty list matches nothing.
fn expression<S: AsRef<str>>(patterns: &[S]) -> String {
    if patterns.is_empty() {
        return "[a&&b]".to_owned();
    }
    let alternatives: Vec<String> =
        patterns.iter().map(|pattern| format!("(?:{})", alternative(pattern.as_ref()))).collect();
    format!(r"\A(?:{})\z", alternatives.join("|"))
}

fn alternative(pattern: &str) -> String {
    if pattern.len() > 1
        && let Some(regular) = pattern.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'))
    {
        return regular.to_owned();
    }
    // In valid UTF-8, "any bytes" matches the same text as "any characters", and compiles to a smaller
    // program.
    let with_stars = regex::escape(pattern).replace(r"\*", "(?-u:.)*");
    with_stars.replace(r"\?", ".")
}

/// Return the reason why a regular expression is malformed, or why the expressions cannot be compiled together;
/// None if all patterns are valid. Names and wildcards are always valid.
pub fn pattern_problem(patterns: &[String]) -> Option<String> {
    let problem = |patterns: &[&str]| compile(patterns).err().map(|error| error.detail);
    let expressions: Vec<&str> =
        patterns.iter().map(String::as_str).filter(|pattern| pattern.starts_with('/')).collect();
    let of_one = |pattern: &&str| {
        let problem = problem(&[pattern])?;
        let shown: String = pattern.chars().take(80).collect();
        Some(format!("malformed pattern '{shown}': {problem}"))
    };
    let of_all = || Some(format!("malformed patterns: {}", problem(&expressions)?));
    expressions.iter().find_map(of_one).or_else(of_all)
}

/// Reduce the message of a regex error, which quotes the expression over several lines, to one line.
fn malformed(error: &regex::Error) -> Error {
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default();
    Error::new(Kind::Internal, reason.trim_start_matches("error: ").to_owned())
}

/// Compiled patterns that match whole names.
pub struct Patterns(Regex);

impl Patterns {
    /// Compile the patterns.
    ///
    /// Errors: `Internal` for a malformed pattern.
    pub fn new(patterns: &[String]) -> Result<Self> {
        Ok(Self(compile(patterns)?))
    }

    /// Return whether one of the patterns matches the name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name.as_bytes())
    }
}

/// Compile the patterns into one expression that matches whole names.
///
/// Errors: `Internal` for a malformed pattern.
pub(super) fn compile<S: AsRef<str>>(patterns: &[S]) -> Result<Regex> {
    Regex::new(&expression(patterns)).map_err(|error| malformed(&error))
}

/// Lists of patterns for function names.
pub(super) struct NameLists {
    /// For each pattern without wildcards (that is, most patterns), the indexes of the lists that contain it.
    exact: FxHashMap<String, Vec<usize>>,
    /// For each list, one expression for all patterns with wildcards.
    expressions: RegexSet,
    cache: FxHashMap<String, Arc<[usize]>>,
}

impl NameLists {
    pub(super) fn new(lists: &[Vec<String>]) -> Result<Self> {
        let mut exact: FxHashMap<String, Vec<usize>> = FxHashMap::default();
        let mut wild: Vec<Vec<&str>> = vec![Vec::new(); lists.len()];
        for (number, list) in lists.iter().enumerate() {
            for pattern in list {
                if pattern.starts_with('/') || pattern.contains(['*', '?']) {
                    wild[number].push(pattern);
                } else {
                    exact.entry(pattern.clone()).or_default().push(number);
                }
            }
        }
        let expressions = RegexSetBuilder::new(wild.iter().map(|list| expression(list)))
            .size_limit(MAX_COMPILED_BYTES)
            .dfa_size_limit(MAX_DFA_BYTES)
            .build()
            .map_err(|error| malformed(&error))?;
        Ok(Self { exact, expressions, cache: FxHashMap::default() })
    }

    /// Return the indexes of the lists that match a function, in ascending order.
    pub(super) fn matching(&mut self, function: &str) -> Arc<[usize]> {
        if let Some(known) = self.cache.get(function) {
            return Arc::clone(known);
        }
        if self.cache.len() >= MAX_CACHED_NAMES {
            self.cache.clear();
        }
        let name = plain_name(function);
        let mut found: Vec<usize> = self.expressions.matches(name.as_bytes()).into_iter().collect();
        found.extend(self.exact.get(name).into_iter().flatten());
        found.sort_unstable();
        found.dedup();
        let found: Arc<[usize]> = found.into();
        self.cache.insert(function.to_owned(), Arc::clone(&found));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(patterns: &[&str], name: &str) -> bool {
        Regex::new(&expression(patterns)).unwrap().is_match(name.as_bytes())
    }

    #[test]
    fn list_matches_whole_names() {
        let cases: [(&[&str], &[&str], &[&str]); 7] = [
            (&[], &[], &["", "a"]),
            (&["ab"], &["ab"], &["", "a", "abc", "xab"]),
            (&["a*b", "c"], &["ab", "axxb", "aéb", "c"], &["abc", "xab", "cc", "a\nb"]),
            (&["*ab*ab*"], &["abab", "xabyabz"], &["ab", "aba"]),
            (&["a?c"], &["abc", "aéc"], &["ac", "abbc"]),
            (&["a.c", "*(*", "[x]"], &["a.c", "f(int)", "[x]"], &["abc", "x"]),
            (&["/a(b|c)+/", "/d|e/"], &["abcb", "d", "e"], &["a", "de"]),
        ];
        for (patterns, names, others) in cases {
            assert!(names.iter().all(|name| matches(patterns, name)), "{patterns:?}");
            assert!(!others.iter().any(|name| matches(patterns, name)), "{patterns:?}");
        }
    }

    #[test]
    fn malformed_pattern_is_reported() {
        assert!(pattern_problem(&["a".into(), "/(/".into()]).is_some());
        assert!(pattern_problem(&["(".into()]).is_none());
    }

    #[test]
    fn compiler_suffixes_are_removed() {
        for suffix in [".isra.3", ".part.0.constprop.12", ".cold", " [clone .cold]", "@@GLIBC_2.3.2", "@plt"]
        {
            assert_eq!(plain_name(&format!("fil_io{suffix}")), "fil_io");
        }
        assert_eq!(plain_name("a.isra.b"), "a.isra.b");
    }
}
