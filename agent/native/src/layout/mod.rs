//! Where the members of global structures lie, from DWARF: `log_sys.lsn` -> offset, size, kind.
//!
//! Made for servers with 300 MB of debug information: only units that mention a wanted name are read.

mod path;
mod types;
mod units;

use rustc_hash::FxHashMap;

use crate::symbols::ElfFile;
use path::{Path, Step};
use types::{Shape, Types};
use units::{Place, Units, sections};

/// What a member holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unsigned integer, boolean or enumeration.
    Unsigned,
    /// Signed integer.
    Signed,
    /// IEEE 754.
    Float,
    /// Address.
    Pointer,
    /// A structure as such.
    Structure,
}

impl Kind {
    /// The word in Python.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unsigned => "unsigned",
            Self::Signed => "signed",
            Self::Float => "float",
            Self::Pointer => "pointer",
            Self::Structure => "structure",
        }
    }

    /// The kind of this word.
    pub fn named(word: &str) -> Option<Self> {
        let all = [Self::Unsigned, Self::Signed, Self::Float, Self::Pointer, Self::Structure];
        all.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// Where a member is, seen from its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Added to the root's address; each further one to the pointer that is read there.
    pub offsets: Vec<u64>,
    /// Bytes of the scalar (or of the structure).
    pub size: u64,
    /// How to read it.
    pub kind: Kind,
    /// Bytes from one element to the next where there are several, whose sum is the value; else 0.
    pub stride: u64,
    /// How many elements; 1 for a plain member, 0 for `[*]` on a pointer, whose target has no known length.
    pub count: u64,
}

/// Why a path could not be followed.
enum Stop {
    /// This unit knows the type by name only: another one may have it whole.
    Incomplete(String),
    /// It is not there.
    Missing(String),
}

/// The places of members, each by `root.member[2].member`: the root is a global variable or a type.
///
/// Pointers on the way are followed as they come; `[*]` stands for all elements, whose sum is the value; a
/// wrapper around one scalar (`std::atomic`) is that scalar, and an `ib_counter_t` the sum of its slots. The
/// answers are in the order of the paths; an error says in words what is not there.
///
/// Costs 0.3 to 3 s for a server.
pub fn members(elf: &ElfFile, paths: &[String]) -> Vec<Result<Member, String>> {
    let sections = sections(elf);
    let units = Units::new(&sections);
    let mut query = Query::new(&units, paths);
    for unit in units.mentioning(&query.roots()) {
        if query.open.is_empty() {
            break;
        }
        query.ask(unit);
    }
    query.answers
}

struct Query<'units, 'data> {
    units: &'units Units<'data>,
    paths: Vec<Option<Path>>,
    /// By root name, the paths that have no answer yet.
    open: FxHashMap<String, Vec<usize>>,
    answers: Vec<Result<Member, String>>,
}

impl<'units, 'data> Query<'units, 'data> {
    fn new(units: &'units Units<'data>, texts: &[String]) -> Self {
        let mut query = Self { units, paths: Vec::new(), open: FxHashMap::default(), answers: Vec::new() };
        for (index, text) in texts.iter().enumerate() {
            match Path::parse(text) {
                Ok(path) => {
                    query.open.entry(path.root.clone()).or_default().push(index);
                    query.answers.push(Err(format!("no debug information of {}", path.root)));
                    query.paths.push(Some(path));
                }
                Err(reason) => {
                    query.answers.push(Err(reason));
                    query.paths.push(None);
                }
            }
        }
        query
    }

    fn roots(&self) -> Vec<&str> {
        self.open.keys().map(String::as_str).collect()
    }

    /// Answers what this unit knows.
    fn ask(&mut self, unit: usize) {
        for (root, place) in self.units.declared(unit, &self.open) {
            let Some(asked) = self.open.remove(&root) else { continue };
            let mut left = Vec::new();
            for index in asked {
                let Some(path) = &self.paths[index] else { continue };
                self.answers[index] = match follow(self.units, place, path) {
                    Ok(member) => Ok(member),
                    Err(Stop::Missing(reason)) => Err(reason),
                    Err(Stop::Incomplete(reason)) => {
                        left.push(index);
                        Err(reason)
                    }
                };
            }
            if !left.is_empty() {
                self.open.insert(root, left);
            }
        }
    }
}

/// The walk along one path.
struct Walk {
    at: Place,
    offsets: Vec<u64>,
    stride: u64,
    count: u64,
}

impl Walk {
    fn add(&mut self, offset: u64) {
        if let Some(last) = self.offsets.last_mut() {
            *last = last.saturating_add(offset);
        }
    }

    fn enter(&mut self, target: Place) -> Result<(), Stop> {
        if self.stride != 0 {
            return Err(Stop::Missing("a pointer behind [*] is not followed".to_owned()));
        }
        self.offsets.push(0);
        self.at = target;
        Ok(())
    }
}

fn follow(units: &Units<'_>, root: Place, path: &Path) -> Result<Member, Stop> {
    let types = Types(units);
    let mut walk = Walk { at: root, offsets: vec![0], stride: 0, count: 1 };
    for step in &path.steps {
        match step {
            Step::Field(name) => field(&types, &mut walk, name, &path.text)?,
            Step::Index(index) => index_into(&types, &mut walk, Some(*index), &path.text)?,
            Step::All => index_into(&types, &mut walk, None, &path.text)?,
        }
    }
    if let Some(Shape::Structure { complete: false }) = types.shape(walk.at) {
        return Err(Stop::Incomplete(format!("{}: the debug information has no such type whole", path.text)));
    }
    let leaf = types.leaf(walk.at).map_err(|reason| Stop::Missing(format!("{}: {reason}", path.text)))?;
    if leaf.slots > 0 {
        if walk.stride != 0 {
            return Err(Stop::Missing(format!("{}: counters in slots behind [*]", path.text)));
        }
        (walk.stride, walk.count) = (leaf.stride, leaf.slots);
    }
    walk.add(leaf.offset);
    let Walk { offsets, stride, count, .. } = walk;
    Ok(Member { offsets, size: leaf.size, kind: leaf.kind, stride, count })
}

fn field(types: &Types<'_, '_>, walk: &mut Walk, name: &str, text: &str) -> Result<(), Stop> {
    loop {
        match types.shape(walk.at) {
            Some(Shape::Pointer(target)) => walk.enter(target)?,
            Some(Shape::Structure { complete: false }) => {
                return Err(Stop::Incomplete(format!(
                    "{text}: the debug information has no such type whole"
                )));
            }
            Some(Shape::Structure { complete: true }) => break,
            _ => return Err(Stop::Missing(format!("{text}: what holds {name} is no structure"))),
        }
    }
    let (offset, at) = types
        .member(walk.at, name)
        .ok_or_else(|| Stop::Missing(format!("{text}: this build has no member {name}")))?;
    walk.add(offset);
    walk.at = at;
    Ok(())
}

/// One element, or all of them.
fn index_into(types: &Types<'_, '_>, walk: &mut Walk, index: Option<u64>, text: &str) -> Result<(), Stop> {
    let (element, count) = match types.shape(walk.at) {
        Some(Shape::Array { element, count }) => (element, count),
        Some(Shape::Pointer(target)) => {
            walk.enter(target)?;
            (target, 0)
        }
        _ => return Err(Stop::Missing(format!("{text}: no array where an index is"))),
    };
    let Some(size) = types.size(element) else {
        return Err(Stop::Incomplete(format!("{text}: the size of an element is not known")));
    };
    match index {
        Some(index) if count > 0 && index >= count => {
            return Err(Stop::Missing(format!("{text}: the array has {count} elements")));
        }
        Some(index) => walk.add(index.saturating_mul(size)),
        None if walk.stride != 0 => return Err(Stop::Missing(format!("{text}: more than one [*]"))),
        None => (walk.stride, walk.count) = (size, count),
    }
    walk.at = element;
    Ok(())
}

#[cfg(test)]
mod tests;
