//! The distinct values of a column, with codes that are cheap to compare.

use parquet::column::reader::ColumnReader;
use rustc_hash::FxHashMap;

use crate::history::query::{Value, text, wrong_type};
use crate::history::{Error, Result};

/// Maximum number of codes of a column: one each for NULL, `Value::Other` and every distinct value. Further
/// values become `Value::Other`.
const MOST_VALUES: usize = 200_000;

/// The distinct values of a column in all files. A value's index in `values` is its code.
pub struct Codes {
    ints: FxHashMap<i64, u32>,
    texts: FxHashMap<Vec<u8>, u32>,
    /// The values by code.
    pub values: Vec<Value>,
}

impl Default for Codes {
    fn default() -> Self {
        Self {
            ints: FxHashMap::default(),
            texts: FxHashMap::default(),
            values: vec![Value::Null, Value::Other],
        }
    }
}

impl Codes {
    const OTHER: u32 = 1;

    fn int(&mut self, value: i64) -> u32 {
        if let Some(code) = self.ints.get(&value) {
            return *code;
        }
        self.add(Value::Int(value), |codes, code| {
            codes.ints.insert(value, code);
        })
    }

    fn text(&mut self, value: &[u8]) -> u32 {
        if let Some(code) = self.texts.get(value) {
            return *code;
        }
        self.add(Value::Text(text(value)), |codes, code| {
            codes.texts.insert(value.to_vec(), code);
        })
    }

    /// Return the code of a value.
    pub fn code(&mut self, value: &Value) -> u32 {
        match value {
            Value::Null => 0,
            Value::Int(number) => self.int(*number),
            Value::Text(text) => self.text(text.as_bytes()),
            Value::Other => Self::OTHER,
        }
    }

    fn add(&mut self, value: Value, remember: impl FnOnce(&mut Self, u32)) -> u32 {
        if self.values.len() >= MOST_VALUES {
            return Self::OTHER;
        }
        let code = self.values.len() as u32;
        self.values.push(value);
        remember(self, code);
        code
    }

    /// Replace `codes` with the codes of the next `rows` rows of a column.
    pub fn read(&mut self, reader: &mut ColumnReader, rows: usize, codes: &mut Vec<u32>) -> Result<()> {
        codes.clear();
        let mut levels = Vec::new();
        let present: Vec<u32> = match reader {
            ColumnReader::Int32ColumnReader(one) => {
                let mut values = Vec::new();
                one.read_records(rows, Some(&mut levels), None, &mut values)?;
                values.into_iter().map(|value| self.int(i64::from(value))).collect()
            }
            ColumnReader::Int64ColumnReader(one) => {
                let mut values = Vec::new();
                one.read_records(rows, Some(&mut levels), None, &mut values)?;
                values.into_iter().map(|value| self.int(value)).collect()
            }
            ColumnReader::ByteArrayColumnReader(one) => {
                let mut values = Vec::new();
                one.read_records(rows, Some(&mut levels), None, &mut values)?;
                values.iter().map(|value| self.text(value.data())).collect()
            }
            _ => return Err(wrong_type()),
        };
        if levels.is_empty() {
            *codes = present;
        } else {
            let mut present = present.into_iter();
            codes.extend(levels.iter().map(|level| if *level > 0 { present.next().unwrap_or(0) } else { 0 }));
        }
        if codes.len() == rows {
            Ok(())
        } else {
            Err(Error::Damaged("columns of different lengths".to_owned()))
        }
    }
}
