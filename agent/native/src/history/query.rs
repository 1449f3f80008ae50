//! Groups the rows of files. The memory needed depends on the number of groups, which is bounded.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use parquet::column::reader::ColumnReader;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::file::statistics::Statistics;
use rustc_hash::FxHashMap;

use crate::history::causes::{self, Causes, Readers};
use crate::history::pages::Budget;
use crate::history::values::Codes;
use crate::history::{Error, Result, file};

/// Number of rows that are decoded at a time.
pub(super) const BATCH: usize = 8_192;
/// Maximum weight of a row in seconds. A larger weight, which no sensor writes, counts as zero.
const LONGEST_S: f64 = 86_400.0;
/// Maximum length of a string in the result, in bytes.
const MOST_TEXT: usize = 16_384;

/// A value of a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// The value is unknown.
    Null,
    /// A number.
    Int(i64),
    /// A string.
    Text(String),
    /// One of the values beyond the limit.
    Other,
}

/// A condition on a column: its value must be one of `values`.
#[derive(Debug, Clone)]
pub struct Filter {
    /// The name of the column.
    pub column: String,
    /// The values to accept: strings, numbers in decimal, or `None` for NULL.
    pub values: Vec<Option<String>>,
    /// True to accept all strings that start with one of the values.
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
    /// Sum of the weights, in seconds.
    pub weight: f64,
    /// Number of rows.
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
    let computed: Vec<_> =
        names.iter().map(|name| causes::COLUMNS.iter().position(|column| column == name)).collect();
    let mut grouping = Grouping {
        causes: computed.iter().any(Option::is_some).then(Causes::default),
        computed,
        pending: Pending::default(),
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
    grouping.flush();
    grouping.answer()
}

/// Call `each` for each row group of a file.
pub(super) fn each_group(
    path: &Path,
    message: &str,
    mut each: impl FnMut(&dyn RowGroupReader) -> Result<()>,
) -> Result<()> {
    let read = || {
        let (file, _) = file::open(path, message)?;
        let mut budget = Budget::of_file(file.metadata()?.len());
        let reader = SerializedFileReader::new(file.try_clone()?)?;
        for number in 0..reader.num_row_groups() {
            let group = reader.get_row_group(number)?;
            budget.spend(&file, group.metadata())?;
            each(&*group)?;
        }
        Ok(())
    };
    // The library panics on some damaged files.
    let damaged = |_| Err(Error::Damaged("the Parquet library failed".to_owned()));
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(damaged)
}

pub(super) fn wrong_type() -> Error {
    Error::Damaged("a column has another type".to_owned())
}

pub(super) fn text(raw: &[u8]) -> String {
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

/// The rows of a snapshot whose causes are not known yet, and the codes of their values, row by row.
#[derive(Default)]
struct Pending {
    rows: Vec<causes::Row>,
    codes: Vec<u32>,
}

struct Grouping<'a> {
    /// Set if one of the columns is computed; rows are then counted snapshot by snapshot.
    causes: Option<Causes>,
    /// For each column, its position among those that `Causes` computes.
    computed: Vec<Option<usize>>,
    pending: Pending,
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
        let (first, end) = self.question.span;
        let back = if self.causes.is_some() { causes::LOOK_BACK_US } else { 0 };
        if !overlaps(metadata, (first.saturating_sub(back), end)) {
            return Ok(());
        }
        let unknown = || Error::Damaged("a column is missing".to_owned());
        let mut readers = Vec::new();
        for (name, computed) in self.names.iter().zip(&self.computed) {
            if computed.is_none() {
                let at = metadata.columns().iter().position(|column| column.column_path().string() == *name);
                readers.push(Some(group.get_column_reader(at.ok_or_else(unknown)?)?));
            } else {
                readers.push(None);
            }
        }
        let mut of_causes = self.causes.as_ref().map(|_| Readers::new(group)).transpose()?;
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
                match reader {
                    Some(reader) => column.read(reader, rows, codes)?,
                    None => *codes = vec![0; rows],
                }
            }
            let weights: Vec<f64> = seconds.into_iter().map(checked).collect();
            let mut key = vec![0; codes.len()];
            if let (Some(causes), Some(readers)) = (&mut self.causes, &mut of_causes) {
                let found = causes.read(readers, &times.values, &weights)?;
                for (row, one) in found.into_iter().enumerate() {
                    self.add_pending(one, codes.iter().map(|codes| codes[row]));
                }
                continue;
            }
            for (row, (at, weight)) in times.values.iter().zip(weights).enumerate() {
                for (value, codes) in key.iter_mut().zip(&codes) {
                    *value = codes[row];
                }
                self.row(*at, weight, &key);
            }
        }
        Ok(())
    }

    /// Keep a row until all rows of its snapshot have been read.
    fn add_pending(&mut self, row: causes::Row, codes: impl Iterator<Item = u32>) {
        let is_next = self.pending.rows.last().is_some_and(|last| !Causes::is_same_snapshot(last, &row));
        if is_next || self.pending.rows.len() >= causes::MOST_ROWS {
            self.flush();
        }
        self.pending.rows.push(row);
        self.pending.codes.extend(codes);
    }

    /// Compute the causes of the pending rows, and count the rows.
    fn flush(&mut self) {
        let Some(mut causes) = self.causes.take() else { return };
        let Pending { rows, mut codes } = std::mem::take(&mut self.pending);
        let width = self.names.len();
        causes.each(&rows, |place, values| {
            let key = &mut codes[place * width..][..width];
            for ((code, computed), column) in key.iter_mut().zip(&self.computed).zip(&mut self.columns) {
                if let Some(at) = computed {
                    *code = column.code(&values[*at]);
                }
            }
            let row = &rows[place];
            self.row(row.at, row.weight, key);
        });
        self.causes = Some(causes);
    }

    /// Count a row if it is in the time span and matches the filters. `codes` contains the values of all columns.
    fn row(&mut self, at: i64, weight: f64, codes: &[u32]) {
        if at < self.question.span.0 || at >= self.question.span.1 {
            return;
        }
        let columns = &self.columns;
        if !self.tests.iter_mut().all(|test| test.accepts(codes[test.at], &columns[test.at])) {
            return;
        }
        self.count(&codes[..self.question.by.len()], weight);
        let (first, last) = self.answer.seen.unwrap_or((at, at));
        self.answer.seen = Some((first.min(at), last.max(at)));
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

/// Return a weight, or 0 if it is invalid.
fn checked(weight: f64) -> f64 {
    if (0.0..=LONGEST_S).contains(&weight) { weight } else { 0.0 }
}

/// Return whether a row group may contain rows within the span; true if the group has no statistics.
fn overlaps(group: &RowGroupMetaData, span: (i64, i64)) -> bool {
    let Some(Statistics::Int64(range)) = group.columns().first().and_then(|column| column.statistics())
    else {
        return true;
    };
    range.min_opt().is_none_or(|min| *min < span.1) && range.max_opt().is_none_or(|max| *max >= span.0)
}
