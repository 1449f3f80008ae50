//! Lists the connections (THD objects) of a server by reading its memory. At most [`MAX`] are returned,
//! because the memory is untrusted.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Field, Memory};
use crate::error::Result;

/// Maximum number of connections.
const MAX: usize = 20_000;
/// Offset from a vtable symbol to the address that objects store, which follows offset-to-top and the RTTI pointer.
const VTABLE: u64 = 16;
/// Offset of the root in a `std::set` (libstdc++, stl_tree.h).
const ROOT: u64 = 16;
/// Offset of the left child in a node. The right child and the value follow it.
const LEFT: u64 = 16;
const POINTER: u64 = 8;

/// The data structure in which a server stores its connections; owners.yaml documents the walks. `first` is
/// the address of the server's variable.
pub enum Walk {
    /// A `base_ilist`: the first THD, and the offset of the pointer to the next one.
    Linked {
        /// Address of the pointer to the first THD.
        first: u64,
        /// Offset of the pointer to the next THD.
        next: u64,
    },
    /// A pointer to a `std::set<THD *>`.
    Tree {
        /// Address of the pointer.
        first: u64,
    },
    /// A pointer to an object with arrays of `THD *`.
    Arrays(Arrays),
}

/// Arrays of `THD *`, as in `Global_THD_manager`.
pub struct Arrays {
    /// Address of the pointer to the object that begins with the arrays.
    pub first: u64,
    /// Number of arrays.
    pub arrays: u64,
    /// Size of an array in bytes.
    pub bytes: u64,
    /// Offset of the pointer to the elements, or of the elements themselves.
    pub items: u64,
    /// Offset of the number of elements behind the pointer.
    pub count: u64,
    /// The number of elements that are stored in place of the pointer; negative if there is a pointer.
    pub inline: Option<Field>,
    /// Address of the vtable symbol of THD.
    pub table: u64,
}

/// Lists the connections of one process.
pub struct Connections {
    walk: Walk,
    /// The nodes of the last walk over a linked list.
    nodes: Vec<u64>,
}

impl Connections {
    /// Create a list that is read with `walk`.
    pub fn new(walk: Walk) -> Self {
        Self { walk, nodes: Vec::new() }
    }

    /// Return the address of the vtable, which is the first word of each THD; None unless the connections are in
    /// arrays.
    pub fn vtable(&self) -> Option<u64> {
        match &self.walk {
            Walk::Arrays(arrays) => Some(arrays.table.wrapping_add(VTABLE)),
            _ => None,
        }
    }

    /// Return the addresses of all THDs, without duplicates. With arrays, some may not be addresses of a THD:
    /// the caller must check for [`Self::vtable`].
    pub fn list(&mut self, memory: &Memory) -> Result<Vec<u64>> {
        let mut found = match &self.walk {
            Walk::Linked { first, next } => {
                self.nodes = linked(memory, *first, *next, &self.nodes)?;
                self.nodes.clone()
            }
            Walk::Tree { first } => tree(memory, *first)?,
            Walk::Arrays(arrays) => {
                // The server shifts the elements when a connection begins or ends (Global_THD_manager::add_thd
                // and remove_thd, mysqld_thd_manager.cc in 5.7), so a read can miss an element or find it
                // twice. Therefore all elements are read twice.
                let mut found = elements(memory, arrays)?;
                found.extend(elements(memory, arrays)?);
                found
            }
        };
        let mut seen = FxHashSet::default();
        found.retain(|thd| *thd != 0 && seen.insert(*thd));
        found.truncate(MAX);
        Ok(found)
    }
}

/// Return the nodes of a linked list, except its sentinel, the node without a successor.
///
/// The pointers in the nodes of the last walk are read together. Each new node takes a separate system call.
fn linked(memory: &Memory, first: u64, next: u64, last: &[u64]) -> Result<Vec<u64>> {
    let pointers = memory.numbers(last.iter().map(|node| node.wrapping_add(next)), 8)?;
    let successors: FxHashMap<u64, u64> = last.iter().copied().zip(pointers).collect();
    let mut nodes = Vec::with_capacity(last.len() + 1);
    let mut passed = FxHashSet::default();
    let mut node = memory.number(first, 8)?;
    for _ in 0..MAX {
        if node == 0 || !passed.insert(node) {
            break;
        }
        let following = match successors.get(&node) {
            Some(following) => *following,
            None => memory.number(node.wrapping_add(next), 8)?,
        };
        if following != 0 {
            nodes.push(node);
        }
        node = following;
    }
    Ok(nodes)
}

/// Return the values of a `std::set`, level by level.
fn tree(memory: &Memory, first: u64) -> Result<Vec<u64>> {
    let set = memory.number(first, 8)?;
    let mut level = vec![memory.number(set.wrapping_add(ROOT), 8)?];
    let mut values = Vec::new();
    while values.len() < MAX {
        level.retain(|node| *node != 0);
        level.truncate(MAX);
        if level.is_empty() {
            break;
        }
        let places: Vec<_> =
            level.iter().map(|node| (node.wrapping_add(LEFT), 3 * POINTER as usize)).collect();
        level.clear();
        for node in memory.read(&places)?.into_iter().flatten() {
            let words: Vec<u64> = words(&node);
            level.extend(&words[..2]);
            values.push(words[2]);
        }
    }
    Ok(values)
}

fn elements(memory: &Memory, arrays: &Arrays) -> Result<Vec<u64>> {
    let first = memory.number(arrays.first, 8)?;
    let mut found = Vec::new();
    for number in 0..arrays.arrays {
        let array = first.wrapping_add(number * arrays.bytes);
        let mut items = memory.number(array.wrapping_add(arrays.items), 8)?;
        let mut count = memory.number(array.wrapping_add(arrays.count), 8)?;
        if let Some(Field { offset, size }) = arrays.inline {
            let inline = memory.number(array.wrapping_add(offset), size)?;
            if inline.saturating_mul(POINTER) <= arrays.bytes {
                (items, count) = (array.wrapping_add(arrays.items), inline);
            }
        }
        let bytes = count.min(MAX as u64) * POINTER;
        found.extend(words(&memory.prefix(items, bytes as usize)));
    }
    Ok(found)
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}
