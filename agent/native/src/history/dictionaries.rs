//! Looks up stacks and digests by their keys.

use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::file::reader::RowGroupReader;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::history::query::{BATCH, Numbers, each_group, text, wrong_type};
use crate::history::schema::{DIGESTS, STACKS};
use crate::history::{Error, Result};

/// Maximum number of functions in a stack. Longer stacks are skipped.
const MOST_FUNCTIONS: usize = 1_024;

/// Return the functions of the wanted stacks, innermost first. Call `failed` for each unreadable file.
pub fn stacks(
    files: &[PathBuf],
    wanted: &[i64],
    mut failed: impl FnMut(&Path, Error),
) -> FxHashMap<i64, Vec<String>> {
    let wanted: FxHashSet<&i64> = wanted.iter().collect();
    let mut found = FxHashMap::default();
    for path in files {
        let read = each_group(path, STACKS, |group| {
            let mut keys = Numbers::new(group, 0)?;
            let ColumnReader::ByteArrayColumnReader(mut names) = group.get_column_reader(1)? else {
                return Err(wrong_type());
            };
            while keys.next()? > 0 {
                let (mut values, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
                let count = keys.values.len();
                names.read_records(count, Some(&mut definition), Some(&mut repetition), &mut values)?;
                let mut values = values.iter();
                let mut at = 0;
                for key in &keys.values {
                    let mut functions = Vec::new();
                    let first = at;
                    while at < repetition.len() && (at == first || repetition[at] > 0) {
                        if definition[at] > 0 {
                            functions.extend(values.next().map(|name| text(name.data())));
                        }
                        at += 1;
                    }
                    if wanted.contains(key) && functions.len() <= MOST_FUNCTIONS {
                        found.insert(*key, functions);
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = read {
            failed(path, error);
        }
    }
    found
}

/// Return the text of each wanted digest. Call `failed` for each file that cannot be read.
pub fn digests(
    files: &[PathBuf],
    wanted: &[String],
    mut failed: impl FnMut(&Path, Error),
) -> FxHashMap<String, String> {
    let wanted: FxHashSet<&String> = wanted.iter().collect();
    let mut found = FxHashMap::default();
    for path in files {
        let read = each_group(path, DIGESTS, |group| {
            let (mut keys, mut texts) = (Texts::new(group, 0)?, Texts::new(group, 1)?);
            while keys.next()? > 0 && texts.next()? == keys.values.len() {
                for (key, value) in keys.values.iter().zip(&texts.values) {
                    let key = text(key.data());
                    if wanted.contains(&key) {
                        found.insert(key, text(value.data()));
                    }
                }
            }
            Ok(())
        });
        if let Err(error) = read {
            failed(path, error);
        }
    }
    found
}

/// Reads a required text column in batches.
struct Texts {
    reader: ColumnReader,
    values: Vec<ByteArray>,
}

impl Texts {
    fn new(group: &dyn RowGroupReader, at: usize) -> Result<Self> {
        Ok(Self { reader: group.get_column_reader(at)?, values: Vec::new() })
    }

    fn next(&mut self) -> Result<usize> {
        let ColumnReader::ByteArrayColumnReader(reader) = &mut self.reader else { return Err(wrong_type()) };
        self.values.clear();
        reader.read_records(BATCH, None, None, &mut self.values)?;
        Ok(self.values.len())
    }
}
