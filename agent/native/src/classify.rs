//! Assigns a wait class to each stack and a kind to each thread, according to the rules in
//! probes/catalog/waits.yaml and threads.yaml.

mod patterns;

use regex::bytes::Regex;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::Result;

use patterns::{MAX_CACHED_NAMES, NameLists, compile};
pub use patterns::{Patterns, pattern_problem, plain_name};

/// The properties of a frame that classification needs.
#[derive(Debug, Clone, Copy)]
pub struct Function<'a> {
    /// The name; empty if no symbol covers the address.
    pub name: &'a str,
    /// The base name of the file.
    pub module: &'a str,
    /// True for a function of the kernel.
    pub kernel: bool,
}

/// The properties of a thread, besides its stack, that classification needs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Situation<'a> {
    /// The thread's name.
    pub comm: &'a str,
    /// The name of the system call that the thread is in.
    pub syscall: Option<&'a str>,
    /// The kind of file that the system call uses.
    pub file: Option<&'a str>,
    /// True if the thread is on a CPU, or runnable.
    pub running: bool,
    /// True if the stack is outdated. Such a stack does not prove that the thread is waiting.
    pub stale: bool,
}

/// A rule of waits.yaml. A condition that is None or an empty set always holds, except `running`.
#[derive(Debug, Clone, Default)]
pub struct Rule {
    /// The class that the rule assigns.
    pub wait: String,
    /// True for a rule that applies only to running threads, false for one that applies only to threads that are not
    /// running. If None, the rule applies to all threads except those with an outdated stack.
    pub running: Option<bool>,
    /// At least one function on the stack must match one of these patterns.
    pub frames: Option<Vec<String>>,
    /// In addition, at least one function on the stack must match one of these patterns.
    pub also: Option<Vec<String>>,
    /// The server's innermost function, or a library function that it calls, must match one of these
    /// patterns.
    pub leaf: Option<Vec<String>>,
    /// No function on the stack may match any of these patterns.
    pub never: Option<Vec<String>>,
    /// The thread's name must match one of these patterns.
    pub comm: Option<Vec<String>>,
    /// The thread must be in one of these system calls.
    pub syscalls: FxHashSet<String>,
    /// The file of the system call must be of one of these kinds.
    pub files: FxHashSet<String>,
}

/// A compiled rule, which refers to pattern lists by index.
struct CompiledRule {
    wait: String,
    running: Option<bool>,
    needed: Vec<usize>,
    leaf: Option<usize>,
    never: Option<usize>,
    comm: Option<Regex>,
    syscalls: FxHashSet<String>,
    files: FxHashSet<String>,
}

/// Assigns wait classes: the first rule whose conditions all hold wins.
pub struct Classifier {
    rules: Vec<CompiledRule>,
    lists: NameLists,
    list_count: usize,
    library: Regex,
    libraries: FxHashMap<String, bool>,
}

impl Classifier {
    /// Compile the rules. `libraries` contains patterns for the modules that are not the server's own.
    ///
    /// Errors: `Internal` for a malformed pattern.
    pub fn new(rules: Vec<Rule>, libraries: &[String]) -> Result<Self> {
        let mut numbers: FxHashMap<Vec<String>, usize> = FxHashMap::default();
        let mut lists: Vec<Vec<String>> = Vec::new();
        let mut number = |list: &Vec<String>| {
            *numbers.entry(list.clone()).or_insert_with(|| {
                lists.push(list.clone());
                lists.len() - 1
            })
        };
        let mut compiled = Vec::with_capacity(rules.len());
        for rule in rules {
            compiled.push(CompiledRule {
                needed: rule.frames.iter().chain(&rule.also).map(&mut number).collect(),
                leaf: rule.leaf.as_ref().map(&mut number),
                never: rule.never.as_ref().map(&mut number),
                comm: rule.comm.as_deref().map(compile).transpose()?,
                wait: rule.wait,
                running: rule.running,
                syscalls: rule.syscalls,
                files: rule.files,
            });
        }
        Ok(Self {
            rules: compiled,
            list_count: lists.len(),
            lists: NameLists::new(&lists)?,
            library: compile(libraries)?,
            libraries: FxHashMap::default(),
        })
    }

    /// Return the wait class of a thread. `stack` lists the functions on its stack, innermost first.
    pub fn classify<'a>(
        &mut self,
        stack: impl IntoIterator<Item = Function<'a>>,
        thread: Situation<'_>,
    ) -> &str {
        let mut anywhere = vec![false; self.list_count];
        let mut leaf = vec![false; self.list_count];
        let mut in_leaf = true;
        for function in stack {
            let counts_as_leaf = in_leaf && !function.kernel;
            if !function.name.is_empty() {
                for list in self.lists.matching(function.name).iter() {
                    anywhere[*list] = true;
                    leaf[*list] |= counts_as_leaf;
                }
            }
            if counts_as_leaf {
                in_leaf = self.is_library(function.module);
            }
        }
        let matching = self.rules.iter().find(|rule| rule.holds(&anywhere, &leaf, thread));
        matching.map_or(if thread.running { "on_cpu" } else { "other" }, |found| &found.wait)
    }

    /// Return whether a file name matches one of the patterns for libraries.
    pub fn is_library(&mut self, module: &str) -> bool {
        if let Some(known) = self.libraries.get(module) {
            return *known;
        }
        if self.libraries.len() >= MAX_CACHED_NAMES {
            self.libraries.clear();
        }
        let found = self.library.is_match(module.as_bytes());
        self.libraries.insert(module.to_owned(), found);
        found
    }
}

impl CompiledRule {
    fn holds(&self, anywhere: &[bool], leaf: &[bool], thread: Situation<'_>) -> bool {
        let state = self.running.map_or(!thread.stale, |running| running == thread.running);
        let one_of = |names: &FxHashSet<String>, name: Option<&str>| {
            names.is_empty() || name.is_some_and(|name| names.contains(name))
        };
        state
            && self.needed.iter().all(|list| anywhere[*list])
            && self.leaf.is_none_or(|list| leaf[list])
            && self.never.is_none_or(|list| !anywhere[list])
            && one_of(&self.syscalls, thread.syscall)
            && one_of(&self.files, thread.file)
            && self.comm.as_ref().is_none_or(|comm| comm.is_match(thread.comm.as_bytes()))
    }
}

/// A kind of thread in threads.yaml.
#[derive(Debug, Clone)]
pub struct KindRule {
    /// Patterns for the functions at the root of these threads' stacks.
    pub frames: Vec<String>,
    /// Patterns for these threads' names.
    pub comm: Vec<String>,
}

/// The result of [`ThreadKinds::of`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadKind {
    /// The kind with this index.
    Known(usize),
    /// A thread of a pool, whose task is unknown.
    Pool,
    /// No pattern matches.
    Other,
}

/// Assigns a kind to each thread by the root of its stack or, if that matches no pattern, by its name.
pub struct ThreadKinds {
    /// One list of function patterns per kind, followed by the list for thread pools.
    functions: NameLists,
    comms: Vec<Regex>,
}

impl ThreadKinds {
    /// Compile the kinds. `pool` contains patterns for the functions of thread pools.
    ///
    /// Errors: `Internal` for a malformed pattern.
    pub fn new(kinds: Vec<KindRule>, pool: Vec<String>) -> Result<Self> {
        let comms = kinds.iter().map(|kind| compile(&kind.comm)).collect::<Result<_>>()?;
        let lists: Vec<Vec<String>> = kinds.into_iter().map(|kind| kind.frames).chain([pool]).collect();
        Ok(Self { functions: NameLists::new(&lists)?, comms })
    }

    /// Return the kind of a thread. `from_root` lists the functions on its stack, outermost first.
    pub fn of<'a>(&mut self, from_root: impl IntoIterator<Item = &'a str>, comm: &str) -> ThreadKind {
        let mut in_pool = false;
        for function in from_root {
            match self.functions.matching(function).first() {
                Some(kind) if *kind < self.comms.len() => return ThreadKind::Known(*kind),
                Some(_) => in_pool = true,
                None => {}
            }
        }
        let by_name = self.comms.iter().position(|pattern| pattern.is_match(comm.as_bytes()));
        by_name.map_or(if in_pool { ThreadKind::Pool } else { ThreadKind::Other }, ThreadKind::Known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_matching_rule_wins() {
        let list = |name: &str| Some(vec![name.to_owned()]);
        let rules = vec![
            Rule { wait: "first".into(), leaf: list("inner"), never: list("not"), ..Rule::default() },
            Rule { wait: "second".into(), frames: list("outer"), ..Rule::default() },
        ];
        let mut classifier = Classifier::new(rules, &["libc.so*".into()]).unwrap();
        let mut class = |names: &[(&str, &str)], running| {
            let stack = names.iter().map(|&(name, module)| Function { name, module, kernel: false });
            classifier.classify(stack, Situation { running, ..Situation::default() }).to_owned()
        };
        assert_eq!(class(&[("poll", "libc.so.6"), ("inner", "mysqld"), ("outer", "mysqld")], false), "first");
        assert_eq!(class(&[("other", "mysqld"), ("inner", "mysqld"), ("outer", "mysqld")], false), "second");
        assert_eq!(class(&[("inner", "mysqld"), ("not", "mysqld")], false), "other");
        assert_eq!(class(&[], true), "on_cpu");
    }

    #[test]
    fn root_decides_the_kind_then_the_name() {
        let rule =
            |frames: &str, comm: &str| KindRule { frames: vec![frames.into()], comm: vec![comm.into()] };
        let mut kinds =
            ThreadKinds::new(vec![rule("io_*", "ib_io"), rule("purge", "ib_*")], vec!["tpool::*".into()])
                .unwrap();
        assert_eq!(kinds.of(["purge", "io_wait"], "ib_io"), ThreadKind::Known(1));
        assert_eq!(kinds.of(["unknown"], "ib_x"), ThreadKind::Known(1));
        assert_eq!(kinds.of(["tpool::task"], "mysqld"), ThreadKind::Pool);
        assert_eq!(kinds.of([], "mysqld"), ThreadKind::Other);
    }
}
