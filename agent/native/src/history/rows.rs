//! Buffers the rows of an hour until they are written to files.

use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::history::schema::{DIGESTS, SAMPLES, SNAPSHOTS, STACKS, TEXTS};
use crate::history::{Result, file};

/// Maximum number of remembered keys of dictionary entries that are already in a file of this hour. Beyond
/// that, all keys are forgotten, and their entries may be written again.
const MOST_KNOWN: usize = 100_000;

/// Values that many rows share. Each text is represented by its number in `Texts`, NULL by 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The texts, in the order of `schema::TEXTS`.
    pub texts: [u32; TEXTS.len()],
    /// The hash of the stack.
    pub stack: i64,
}

/// One busy thread in one snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The thread's id.
    pub tid: i32,
    /// The index of the shape: among those passed to `Hour::add`, or, once added, in `Hour::shape_list`.
    pub shape: u32,
    /// The connection's id.
    pub connection: Option<i64>,
    /// The id of the connection that the thread is waiting for.
    pub blocker: Option<i64>,
}

/// One snapshot of a server.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Unix time in microseconds.
    pub at: i64,
    /// The seconds that the snapshot represents (docs/history.md).
    pub weight: f64,
    /// The busy threads.
    pub rows: Vec<Row>,
}

/// Distinct texts with their numbers, from 1.
#[derive(Debug, Default)]
struct Texts {
    numbers: FxHashMap<Arc<str>, u32>,
    all: Vec<Arc<str>>,
    bytes: usize,
}

impl Texts {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let shared: Arc<str> = text.into();
        self.bytes += text.len() + 64;
        self.all.push(shared.clone());
        let number = self.all.len() as u32;
        self.numbers.insert(shared, number);
        number
    }

    /// Return a column: its values without NULL, and the definition levels.
    fn column(&self, numbers: impl Iterator<Item = u32>) -> (Vec<ByteArray>, Vec<i16>) {
        let shared: Vec<ByteArray> =
            self.all.iter().map(|text| ByteArray::from(text.as_bytes().to_vec())).collect();
        let mut values = Vec::new();
        let levels = numbers
            .map(|number| {
                values.extend(number.checked_sub(1).map(|at| shared[at as usize].clone()));
                i16::from(number > 0)
            })
            .collect();
        (values, levels)
    }
}

/// Dictionary entries that are not in a file of this hour yet, and the keys of the entries that are.
#[derive(Debug)]
struct Dictionary<K, V> {
    pending: FxHashMap<K, V>,
    written: FxHashSet<K>,
    bytes: usize,
}

impl<K, V> Default for Dictionary<K, V> {
    fn default() -> Self {
        Self { pending: FxHashMap::default(), written: FxHashSet::default(), bytes: 0 }
    }
}

impl<K: std::hash::Hash + Eq + Clone, V> Dictionary<K, V> {
    fn add(&mut self, key: K, bytes: usize, value: impl FnOnce() -> V) {
        if !self.written.contains(&key) && !self.pending.contains_key(&key) {
            self.pending.insert(key, value());
            self.bytes += bytes;
        }
    }

    fn commit(&mut self) {
        if self.written.len() > MOST_KNOWN {
            self.written.clear();
        }
        self.written.extend(std::mem::take(&mut self.pending).into_keys());
        self.bytes = 0;
    }
}

/// The rows and dictionary entries of an hour that have not been written yet.
#[derive(Debug, Default)]
pub struct Hour {
    texts: Texts,
    shapes: FxHashMap<Shape, u32>,
    shape_list: Vec<Shape>,
    /// The time, weight, server and number of rows of each snapshot.
    snapshots: Vec<(i64, f64, u32, usize)>,
    rows: Vec<Row>,
    stacks: Dictionary<i64, Vec<String>>,
    digests: Dictionary<String, String>,
}

impl Hour {
    /// Add snapshots of a server. `shapes` contains the texts and the stack of each shape that the rows refer to.
    /// Return false, without adding the snapshots, if a row refers to a shape that is missing.
    pub fn add<'a>(
        &mut self,
        server: &str,
        shapes: impl Iterator<Item = ([Option<&'a str>; TEXTS.len()], i64)>,
        snapshots: &[Snapshot],
    ) -> bool {
        let numbers: Vec<u32> = shapes.map(|(texts, stack)| self.shape(texts, stack)).collect();
        if snapshots.iter().flat_map(|one| &one.rows).any(|row| row.shape as usize >= numbers.len()) {
            return false;
        }
        let server = self.texts.number(server);
        for one in snapshots {
            self.snapshots.push((one.at, one.weight, server, one.rows.len()));
            self.rows.extend(one.rows.iter().map(|row| Row { shape: numbers[row.shape as usize], ..*row }));
        }
        true
    }

    /// Add a stack to the dictionary unless it is known.
    pub fn add_stack(&mut self, stack: i64, functions: impl FnOnce() -> Vec<String>, bytes: usize) {
        self.stacks.add(stack, bytes, functions);
    }

    /// Add a digest to the dictionary unless it is known.
    pub fn add_digest(&mut self, digest: &str, text: &str) {
        self.digests.add(digest.to_owned(), digest.len() + text.len(), || text.to_owned());
    }

    /// Return the number of rows that have not been written yet.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Return whether there are no snapshots to write, including those without rows.
    pub fn is_empty(&self) -> bool {
        self.snapshots.is_empty()
    }

    /// Return the estimated size in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.len() * size_of::<Row>()
            + self.snapshots.len() * size_of::<(i64, f64, u32, usize)>()
            + self.shape_list.len() * 3 * size_of::<Shape>()
            + self.texts.bytes
            + self.stacks.bytes
            + self.digests.bytes
    }

    /// Write the dictionary entries of stacks. Return false, without writing, if there are none.
    pub fn write_stacks(&self, path: &Path) -> Result<bool> {
        let stacks = &self.stacks.pending;
        if stacks.is_empty() {
            return Ok(false);
        }
        let keys: Vec<i64> = stacks.keys().copied().collect();
        let (mut names, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
        for functions in stacks.values() {
            names.extend(functions.iter().map(|name| ByteArray::from(name.as_bytes().to_vec())));
            let count = functions.len();
            definition.extend((0..count.max(1)).map(|_| i16::from(count > 0)));
            repetition.extend((0..count.max(1)).map(|at| i16::from(at > 0)));
        }
        file::write(path, STACKS, |group| {
            file::write_column::<Int64Type>(group, &keys, None, None)?;
            file::write_column::<ByteArrayType>(group, &names, Some(&definition), Some(&repetition))
        })?;
        Ok(true)
    }

    /// Write the dictionary entries of digests. Return false, without writing, if there are none.
    pub fn write_digests(&self, path: &Path) -> Result<bool> {
        let digests = &self.digests.pending;
        if digests.is_empty() {
            return Ok(false);
        }
        let bytes = |text: &String| ByteArray::from(text.as_bytes().to_vec());
        let keys: Vec<ByteArray> = digests.keys().map(bytes).collect();
        let texts: Vec<ByteArray> = digests.values().map(bytes).collect();
        file::write(path, DIGESTS, |group| {
            file::write_column::<ByteArrayType>(group, &keys, None, None)?;
            file::write_column::<ByteArrayType>(group, &texts, None, None)
        })?;
        Ok(true)
    }

    /// Write the time, the weight and the server of each snapshot.
    pub fn write_snapshots(&self, path: &Path) -> Result<()> {
        let all = &self.snapshots;
        file::write(path, SNAPSHOTS, |group| {
            file::write_column::<Int64Type>(
                group,
                &all.iter().map(|one| one.0).collect::<Vec<_>>(),
                None,
                None,
            )?;
            file::write_column::<DoubleType>(
                group,
                &all.iter().map(|one| one.1).collect::<Vec<_>>(),
                None,
                None,
            )?;
            let (servers, _) = self.texts.column(all.iter().map(|one| one.2));
            file::write_column::<ByteArrayType>(group, &servers, None, None)
        })
    }

    /// Write the rows.
    pub fn write_samples(&self, path: &Path) -> Result<()> {
        file::write(path, SAMPLES, |group| {
            file::write_column::<Int64Type>(group, &self.each(|one| one.0), None, None)?;
            file::write_column::<DoubleType>(group, &self.each(|one| one.1), None, None)?;
            let (servers, _) = self.texts.column(self.each(|one| one.2).into_iter());
            file::write_column::<ByteArrayType>(group, &servers, None, None)?;
            let tids: Vec<i32> = self.rows.iter().map(|row| row.tid).collect();
            file::write_column::<Int32Type>(group, &tids, None, None)?;
            for id in [|row: &Row| row.connection, |row: &Row| row.blocker] {
                let values: Vec<i64> = self.rows.iter().filter_map(id).collect();
                let levels: Vec<i16> = self.rows.iter().map(|row| i16::from(id(row).is_some())).collect();
                file::write_column::<Int64Type>(group, &values, Some(&levels), None)?;
            }
            let stacks: Vec<i64> = self.rows.iter().map(|row| self.shape_of(row).stack).collect();
            file::write_column::<Int64Type>(group, &stacks, None, None)?;
            for at in 0..TEXTS.len() {
                let numbers = self.rows.iter().map(|row| self.shape_of(row).texts[at]);
                let (values, levels) = self.texts.column(numbers);
                file::write_column::<ByteArrayType>(group, &values, Some(&levels), None)?;
            }
            Ok(())
        })
    }

    /// Discard the rows. `written` is false if they could not be written; in that case, also discard the dictionary
    /// entries and their keys.
    pub fn clear(&mut self, written: bool) {
        self.rows = Vec::new();
        self.snapshots = Vec::new();
        self.shape_list = Vec::new();
        self.shapes = FxHashMap::default();
        self.texts = Texts::default();
        if written {
            self.stacks.commit();
            self.digests.commit();
        } else {
            self.stacks = Dictionary::default();
            self.digests = Dictionary::default();
        }
    }

    fn shape(&mut self, texts: [Option<&str>; TEXTS.len()], stack: i64) -> u32 {
        let texts = texts.map(|text| text.map_or(0, |text| self.texts.number(text)));
        let shape = Shape { texts, stack };
        *self.shapes.entry(shape).or_insert_with_key(|shape| {
            self.shape_list.push(shape.clone());
            self.shape_list.len() as u32 - 1
        })
    }

    fn shape_of(&self, row: &Row) -> &Shape {
        &self.shape_list[row.shape as usize]
    }

    /// Return, for each row, a value of the snapshot that contains it.
    fn each<T: Copy>(&self, value: impl Fn(&(i64, f64, u32, usize)) -> T) -> Vec<T> {
        self.snapshots.iter().flat_map(|one| std::iter::repeat_n(value(one), one.3)).collect()
    }
}
