//! Finds members of global structures in DWARF: the offset, size and kind of `log_sys.lsn`, for example.
//!
//! Only compilation units that mention a wanted name are parsed, because servers have up to 300 MB of debug
//! information.

mod path;
mod types;
mod units;

use rustc_hash::FxHashMap;

use crate::symbols::ElfFile;
use path::{Path, Step};
use types::{Shape, Types};
use units::{Place, Units, sections};

/// The kind of value that a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An unsigned integer, boolean or enumeration.
    Unsigned,
    /// A signed integer.
    Signed,
    /// An IEEE 754 floating-point number.
    Float,
    /// A pointer.
    Pointer,
    /// A complete structure.
    Structure,
}

impl Kind {
    /// Return the name of the kind in Python.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Signed => "signed",
            Self::Float => "float",
            Self::Pointer => "pointer",
            Self::Structure => "structure",
        }
    }

    /// Return the kind with this name.
    pub fn from_word(word: &str) -> Option<Self> {
        let all = [Self::Unsigned, Self::Signed, Self::Float, Self::Pointer, Self::Structure];
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// The location of a member relative to its root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// The first offset is added to the root's address. Each further offset is added to the pointer read from
    /// the previous address.
    pub offsets: Vec<u64>,
    /// Size of the scalar or structure in bytes.
    pub size: u64,
    /// The kind of value.
    pub kind: Kind,
    /// If the value is a sum over several elements, the distance between them in bytes; otherwise 0.
    pub stride: u64,
    /// The number of elements: 1 for a plain member; 0 for `[*]` on a pointer, which points to an array of
    /// unknown length.
    pub count: u64,
}

/// The reason why a path could not be resolved.
enum Stop {
    /// This unit has only a forward declaration of the type; another unit may define it.
    Incomplete(String),
    /// The member does not exist.
    Missing(String),
}

/// Find members for paths such as `root.member[2].member`, whose root is a global variable or a type.
///
/// Pointers in the path are followed. `[*]` means all elements, and the value is their sum. A wrapper around
/// one scalar (`std::atomic`) counts as that scalar, and an `ib_counter_t` as the sum of its slots. Results
/// are in the order of the paths; an error contains the reason.
///
/// This takes 0.3 to 3 s for a server.
pub fn members(elf: &ElfFile, paths: &[String]) -> Vec<Result<Member, String>> {
    let sections = sections(elf);
    let units = Units::new(&sections);
    let mut query = Query::new(&units, paths);
    for unit in units.units_mentioning(&query.roots()) {
        if query.open.is_empty() {
            break;
        }
        query.resolve_in(unit);
    }
    if let Some(problem) = elf.problem() {
        for index in query.open.values().flatten() {
            if let Err(reason) = &mut query.results[*index] {
                *reason = format!("{reason}; {}: {problem}", elf.path().display());
            }
        }
    }
    query.results
}

struct Query<'units, 'data> {
    units: &'units Units<'data>,
    paths: Vec<Option<Path>>,
    /// The indexes of the paths that have no result yet, by root name.
    open: FxHashMap<String, Vec<usize>>,
    results: Vec<Result<Member, String>>,
}

impl<'units, 'data> Query<'units, 'data> {
    fn new(units: &'units Units<'data>, texts: &[String]) -> Self {
        let mut query = Self { units, paths: Vec::new(), open: FxHashMap::default(), results: Vec::new() };
        for (index, text) in texts.iter().enumerate() {
            match Path::parse(text) {
                Ok(path) => {
                    query.open.entry(path.root.clone()).or_default().push(index);
                    query.results.push(Err(format!("no debug information of {}", path.root)));
                    query.paths.push(Some(path));
                }
                Err(reason) => {
                    query.results.push(Err(reason));
                    query.paths.push(None);
                }
            }
        }
        query
    }

    fn roots(&self) -> Vec<&str> {
        self.open.keys().map(String::as_str).collect()
    }

    /// Resolve the paths whose roots this unit declares.
    fn resolve_in(&mut self, unit: usize) {
        for (root, place) in self.units.declarations(unit, &self.open) {
            let Some(indexes) = self.open.remove(&root) else { continue };
            let mut unresolved = Vec::new();
            for index in indexes {
                let Some(path) = &self.paths[index] else { continue };
                self.results[index] = match follow(self.units, place, path) {
                    Ok(member) => Ok(member),
                    Err(Stop::Missing(reason)) => Err(reason),
                    Err(Stop::Incomplete(reason)) => {
                        unresolved.push(index);
                        Err(reason)
                    }
                };
            }
            if !unresolved.is_empty() {
                self.open.insert(root, unresolved);
            }
        }
    }
}

/// The state of resolving one path.
struct Resolver {
    at: Place,
    offsets: Vec<u64>,
    stride: u64,
    count: u64,
}

impl Resolver {
    fn add(&mut self, offset: u64) {
        if let Some(last) = self.offsets.last_mut() {
            *last = last.saturating_add(offset);
        }
    }

    fn enter(&mut self, target: Place) -> Result<(), Stop> {
        if self.stride != 0 {
            return Err(Stop::Missing("a pointer after [*] is not supported".to_owned()));
        }
        self.offsets.push(0);
        self.at = target;
        Ok(())
    }
}

fn follow(units: &Units<'_>, root: Place, path: &Path) -> Result<Member, Stop> {
    let types = Types(units);
    let mut resolver = Resolver { at: root, offsets: vec![0], stride: 0, count: 1 };
    for step in &path.steps {
        match step {
            Step::Field(name) => field(&types, &mut resolver, name, &path.text)?,
            Step::Index(index) => index_into(&types, &mut resolver, Some(*index), &path.text)?,
            Step::All => index_into(&types, &mut resolver, None, &path.text)?,
        }
    }
    if let Some(Shape::Structure { complete: false }) = types.shape(resolver.at) {
        return Err(Stop::Incomplete(format!("{}: the debug information only declares the type", path.text)));
    }
    let leaf = types.leaf(resolver.at).map_err(|reason| Stop::Missing(format!("{}: {reason}", path.text)))?;
    if leaf.slots > 0 {
        if resolver.stride != 0 {
            return Err(Stop::Missing(format!(
                "{}: counters in slots after [*] are not supported",
                path.text
            )));
        }
        (resolver.stride, resolver.count) = (leaf.stride, leaf.slots);
    }
    resolver.add(leaf.offset);
    let Resolver { offsets, stride, count, .. } = resolver;
    Ok(Member { offsets, size: leaf.size, kind: leaf.kind, stride, count })
}

fn field(types: &Types<'_, '_>, resolver: &mut Resolver, name: &str, text: &str) -> Result<(), Stop> {
    loop {
        match types.shape(resolver.at) {
            Some(Shape::Pointer(target)) => resolver.enter(target)?,
            Some(Shape::Structure { complete: false }) => {
                return Err(Stop::Incomplete(format!(
                    "{text}: the debug information only declares the type"
                )));
            }
            Some(Shape::Structure { complete: true }) => break,
            _ => return Err(Stop::Missing(format!("{text}: the parent of {name} is not a structure"))),
        }
    }
    let (offset, at) = types
        .member(resolver.at, name)
        .ok_or_else(|| Stop::Missing(format!("{text}: this build has no member {name}")))?;
    resolver.add(offset);
    resolver.at = at;
    Ok(())
}

/// Select one element of an array, or all of them.
fn index_into(
    types: &Types<'_, '_>,
    resolver: &mut Resolver,
    index: Option<u64>,
    text: &str,
) -> Result<(), Stop> {
    let (element, count) = match types.shape(resolver.at) {
        Some(Shape::Array { element, count }) => (element, count),
        Some(Shape::Pointer(target)) => {
            resolver.enter(target)?;
            (target, 0)
        }
        _ => return Err(Stop::Missing(format!("{text}: an index on a type that is not an array"))),
    };
    let Some(size) = types.size(element) else {
        return Err(Stop::Incomplete(format!("{text}: the size of an element is not known")));
    };
    match index {
        Some(index) if count > 0 && index >= count => {
            return Err(Stop::Missing(format!("{text}: the array has {count} elements")));
        }
        Some(index) => resolver.add(index.saturating_mul(size)),
        None if resolver.stride != 0 => return Err(Stop::Missing(format!("{text}: more than one [*]"))),
        None => (resolver.stride, resolver.count) = (size, count),
    }
    resolver.at = element;
    Ok(())
}

#[cfg(test)]
mod tests;
