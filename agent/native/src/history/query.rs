//! Group the rows of files. The memory needed depends on the number of groups, which is bounded.

use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::data_type::ByteArray;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::statistics::Statistics;
use rustc_hash::FxHashMap;

use crate::history::{Error, Result, file};

/// Rows decoded at a time.
pub(super) const BATCH: usize = 8_192;
/// Maximum number of codes of a column: those of NULL and `Value::Other`, and one per distinct value. Further
/// values become `Value::Other`.
const MOST_VALUES: usize = 200_000;
/// Maximum weight of a row in seconds. A larger one, which no sensor writes, counts as zero.
const LONGEST_S: f64 = 86_400.0;
/// Maximum bytes of a text in the result.
const MOST_TEXT: usize = 16_384;

/// A value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value is unknown.
    Null,
    /// A number.
    Int(i64),
    /// A text.
    Text(String),
    /// One of the values beyond the limit.
    Other,
}

/// A condition on a column, which is met by any of `values`.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The name of the column.
    pub column: String,
    /// The values to accept: texts, numbers in decimal, or `None` for NULL.
    pub values: Vec<Option<String>>,
    /// True to accept all texts that start with one of the values.
    pub prefix: bool,
}

/// The rows to read, and how to group them.
#[derive(Debug, Clone)]
pub struct Question {
    /// Start (inclusive) and end (exclusive), in Unix microseconds.
    pub span: (i64, i64),
    /// The columns to group by.
    pub by: Vec<String>,
    /// The rows to include; all filters must match.
    pub filters: Vec<Filter>,
    /// Maximum number of groups. Rows that would need another group are counted in `Answer::rest`.
    pub most_groups: usize,
}

/// The sum of weights, and the number of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Total {
    /// Seconds.
    pub weight: f64,
    /// Rows.
    pub rows: u64,
}

impl Total {
    fn add(&mut self, weight: f64) {
        self.weight += weight;
        self.rows += 1;
    }
}

/// The groups, largest first, and the total of the rows beyond the limit.
#[derive(Debug, Default)]
pub struct Answer {
    /// The values of the columns of each group, and its total.
    pub groups: Vec<(Vec<Value>, Total)>,
    /// The total of the rows that are in no group.
    pub rest: Total,
    /// The times of the oldest and the newest row that was counted, in Unix microseconds.
    pub seen: Option<(i64, i64)>,
}

/// Group the rows of a table's files. Call `failed` for each unreadable file, and continue with the next.
pub fn group(
    files: &[PathBuf],
    message: &str,
    question: &Question,
    mut failed: impl FnMut(&Path, Error),
) -> Answer {
    let mut names: Vec<&str> = question.by.iter().map(String::as_str).collect();
    let mut tests = Vec::new();
    for filter in &question.filters {
        let at = names.iter().position(|name| *name == filter.column).unwrap_or(names.len());
        if at == names.len() {
            names.push(&filter.column);
        }
        tests.push(Test { at, filter, known: Vec::new() });
    }
    let mut grouping = Grouping {
        question,
        columns: names.iter().map(|_| Codes::default()).collect(),
        names,
        tests,
        totals: FxHashMap::default(),
        answer: Answer::default(),
    };
    for path in files {
        if let Err(error) = grouping.file(path, message) {
            failed(path, error);
        }
    }
    grouping.answer()
}

pub(super) fn each_group(
    path: &Path,
    message: &str,
    mut each: impl FnMut(&dyn RowGroupReader) -> Result<()>,
) -> Result<()> {
    let (file, _) = file::open(path, message)?;
    let reader = SerializedFileReader::new(file)?;
    for number in 0..reader.num_row_groups() {
        each(&*reader.get_row_group(number)?)?;
    }
    Ok(())
}

pub(super) fn wrong_type() -> Error {
    Error::Damaged("a column has another type".to_owned())
}

pub(super) fn text(value: &ByteArray) -> String {
    let raw = value.data();
    String::from_utf8_lossy(&raw[..raw.len().min(MOST_TEXT)]).into_owned()
}

/// Reads a required integer column in batches.
pub(super) struct Numbers {
    reader: ColumnReader,
    pub(super) values: Vec<i64>,
}

impl Numbers {
    pub(super) fn new(group: &dyn RowGroupReader, at: usize) -> Result<Self> {
        Ok(Self { reader: group.get_column_reader(at)?, values: Vec::new() })
    }

    pub(super) fn next(&mut self) -> Result<usize> {
        let ColumnReader::Int64ColumnReader(reader) = &mut self.reader else { return Err(wrong_type()) };
        self.values.clear();
        reader.read_records(BATCH, None, None, &mut self.values)?;
        Ok(self.values.len())
    }
}

/// The distinct values of a column in all files. A value's index in `values` is its code.
struct Codes {
    ints: FxHashMap<i64, u32>,
    texts: FxHashMap<Vec<u8>, u32>,
    values: Vec<Value>,
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

    fn text(&mut self, value: &ByteArray) -> u32 {
        if let Some(code) = self.texts.get(value.data()) {
            return *code;
        }
        self.add(Value::Text(text(value)), |codes, code| {
            codes.texts.insert(value.data().to_vec(), code);
        })
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

    /// Replace `codes` with those of the next `rows` rows of a column.
    fn read(&mut self, reader: &mut ColumnReader, rows: usize, codes: &mut Vec<u32>) -> Result<()> {
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
                values.iter().map(|value| self.text(value)).collect()
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

/// A filter, and whether it accepts each code of its column.
struct Test<'a> {
    at: usize,
    filter: &'a Filter,
    known: Vec<bool>,
}

impl Test<'_> {
    fn accepts(&mut self, code: u32, column: &Codes) -> bool {
        while self.known.len() < column.values.len() {
            self.known.push(self.filter.accepts(&column.values[self.known.len()]));
        }
        self.known[code as usize]
    }
}

impl Filter {
    fn accepts(&self, value: &Value) -> bool {
        self.values.iter().any(|wanted| match (wanted, value) {
            (None, Value::Null) => true,
            (Some(wanted), Value::Int(number)) => *wanted == number.to_string(),
            (Some(wanted), Value::Text(text)) => wanted == text || (self.prefix && text.starts_with(wanted)),
            _ => false,
        })
    }
}

struct Grouping<'a> {
    question: &'a Question,
    names: Vec<&'a str>,
    columns: Vec<Codes>,
    tests: Vec<Test<'a>>,
    totals: FxHashMap<Box<[u32]>, Total>,
    answer: Answer,
}

impl Grouping<'_> {
    fn file(&mut self, path: &Path, message: &str) -> Result<()> {
        each_group(path, message, |group| self.row_group(group))
    }

    fn row_group(&mut self, group: &dyn RowGroupReader) -> Result<()> {
        let metadata = group.metadata();
        if !overlaps(metadata, self.question.span) {
            return Ok(());
        }
        let unknown = || Error::Damaged("a column is missing".to_owned());
        let mut readers = Vec::new();
        for name in &self.names {
            let at = metadata.columns().iter().position(|column| column.column_path().string() == *name);
            readers.push(group.get_column_reader(at.ok_or_else(unknown)?)?);
        }
        let mut times = Numbers::new(group, 0)?;
        let ColumnReader::DoubleColumnReader(mut weights) = group.get_column_reader(1)? else {
            return Err(wrong_type());
        };
        let mut codes = vec![Vec::new(); readers.len()];
        while times.next()? > 0 {
            let rows = times.values.len();
            let mut seconds = Vec::new();
            weights.read_records(rows, None, None, &mut seconds)?;
            if seconds.len() != rows {
                return Err(Error::Damaged("columns of different lengths".to_owned()));
            }
            for ((reader, column), codes) in readers.iter_mut().zip(&mut self.columns).zip(&mut codes) {
                column.read(reader, rows, codes)?;
            }
            self.batch(&times.values, &seconds, &codes);
        }
        Ok(())
    }

    fn batch(&mut self, times: &[i64], seconds: &[f64], codes: &[Vec<u32>]) {
        let mut key = vec![0; self.question.by.len()];
        for (row, (at, weight)) in times.iter().zip(seconds).enumerate() {
            if *at < self.question.span.0 || *at >= self.question.span.1 {
                continue;
            }
            let columns = &self.columns;
            if !self.tests.iter_mut().all(|test| test.accepts(codes[test.at][row], &columns[test.at])) {
                continue;
            }
            let weight = if (0.0..=LONGEST_S).contains(weight) { *weight } else { 0.0 };
            for (value, column) in key.iter_mut().zip(codes) {
                *value = column[row];
            }
            self.count(&key, weight);
            let (first, last) = self.answer.seen.unwrap_or((*at, *at));
            self.answer.seen = Some((first.min(*at), last.max(*at)));
        }
    }

    fn count(&mut self, key: &[u32], weight: f64) {
        if let Some(total) = self.totals.get_mut(key) {
            total.add(weight);
        } else if self.totals.len() < self.question.most_groups {
            self.totals.insert(key.into(), Total { weight, rows: 1 });
        } else {
            self.answer.rest.add(weight);
        }
    }

    fn answer(mut self) -> Answer {
        let columns = &self.columns;
        let value = |(code, column): (&u32, &Codes)| column.values[*code as usize].clone();
        let values = |key: &[u32]| key.iter().zip(columns).map(value).collect::<Vec<_>>();
        self.answer.groups = self.totals.iter().map(|(key, total)| (values(key), *total)).collect();
        self.answer.groups.sort_by(|a, b| b.1.weight.total_cmp(&a.1.weight));
        self.answer
    }
}

/// Return whether a row group may contain rows within the span; true if it has no statistics.
fn overlaps(group: &RowGroupMetaData, span: (i64, i64)) -> bool {
    let Some(Statistics::Int64(range)) = group.columns().first().and_then(|column| column.statistics())
    else {
        return true;
    };
    range.min_opt().is_none_or(|min| *min < span.1) && range.max_opt().is_none_or(|max| *max >= span.0)
}
