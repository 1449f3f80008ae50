//! Limits the memory and the time that reading a file can take, based on its page headers (`PageHeader` in
//! parquet.thrift). The Parquet library allocates as much as a header claims, and a page of a few bytes can claim
//! 2^31 values.

use std::fs::File;
use std::os::unix::fs::FileExt;

use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};

use crate::history::thrift::{Input, STRUCT};
use crate::history::{Error, Result};

/// Maximum size in bytes of all pages of a row group, uncompressed. The agent writes a row group at the latest
/// when it has 65,536 rows or 8 MiB.
const MOST_BYTES: u64 = 64 << 20;
/// Maximum number of values in all dictionaries of a row group. In memory, a text takes 32 bytes.
const MOST_DISTINCT: u64 = 1 << 20;
/// Maximum number of values, and of uncompressed bytes, per byte of a file. For 65,536 rows in which only the
/// thread and the connection vary, the ratios are 320 and 55.
const VALUES_PER_BYTE: u64 = 512;
const BYTES_PER_BYTE: u64 = 256;
/// Number of bytes to read first for a header, which has at most a few hundred bytes unless it contains statistics.
const USUAL_BYTES: u64 = 512;
const MOST_HEADER_BYTES: u64 = 64 << 10;

/// The number of values and bytes that the rest of a file may contain.
pub struct Budget {
    values: u64,
    bytes: u64,
}

/// The sizes and value counts that a page's header claims.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header {
    uncompressed: u64,
    compressed: u64,
    /// Number of values in a data page.
    values: u64,
    /// Number of values in a dictionary.
    distinct: u64,
}

impl Budget {
    /// Return the budget of a file of this size.
    pub fn of_file(bytes: u64) -> Self {
        Self { values: bytes.saturating_mul(VALUES_PER_BYTE), bytes: bytes.saturating_mul(BYTES_PER_BYTE) }
    }

    /// Subtract the cost of a row group. Fail if it exceeds the budget or the limits of a row group.
    pub fn spend(&mut self, file: &File, group: &RowGroupMetaData) -> Result<()> {
        let (mut bytes, mut distinct) = (0, 0);
        for column in group.columns() {
            each_page(file, column, |page| {
                bytes += page.uncompressed;
                distinct += page.distinct;
                let values = self.values.checked_sub(page.values + page.distinct);
                let rest = self.bytes.checked_sub(page.uncompressed);
                let (Some(values), Some(rest)) = (values, rest) else { return Err(too_large()) };
                (self.values, self.bytes) = (values, rest);
                if bytes > MOST_BYTES || distinct > MOST_DISTINCT { Err(too_large()) } else { Ok(()) }
            })?;
        }
        Ok(())
    }
}

/// Call `each` with the header of each page of a column.
fn each_page(
    file: &File,
    column: &ColumnChunkMetaData,
    mut each: impl FnMut(&Header) -> Result<()>,
) -> Result<()> {
    let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
    let mut offset = u64::try_from(start).map_err(|_| malformed())?;
    let mut rest = u64::try_from(column.compressed_size()).map_err(|_| malformed())?;
    while rest > 0 {
        let (header, length) = read(file, offset, rest)?;
        each(&header)?;
        let page = length + header.compressed;
        rest = rest.checked_sub(page).ok_or_else(malformed)?;
        offset = offset.checked_add(page).ok_or_else(malformed)?;
    }
    Ok(())
}

/// Return the header at an offset, and its length.
fn read(file: &File, offset: u64, most: u64) -> Result<(Header, u64)> {
    for bytes in [USUAL_BYTES, MOST_HEADER_BYTES] {
        let mut raw = vec![0; bytes.min(most) as usize];
        let count = file.read_at(&mut raw, offset)?;
        let mut input = Input::new(&raw[..count]);
        if let Some(header) = header(&mut input) {
            return Ok((header, (count - input.rest()) as u64));
        }
    }
    Err(malformed())
}

fn header(input: &mut Input) -> Option<Header> {
    let mut found = Header::default();
    input.fields(|input, id, kind| {
        match id {
            2 => found.uncompressed = input.size(kind)?,
            3 => found.compressed = input.size(kind)?,
            // A data page (5, and 8 in version 2), or a dictionary (7). Each begins with the number of values.
            5 | 7 | 8 if kind == STRUCT => input.fields(|input, member, kind| {
                match member {
                    1 if id == 7 => found.distinct = input.size(kind)?,
                    1 => found.values = input.size(kind)?,
                    _ => input.skip(kind)?,
                }
                Some(())
            })?,
            _ => input.skip(kind)?,
        }
        Some(())
    })?;
    Some(found)
}

fn malformed() -> Error {
    Error::Damaged("the header of a page is malformed".to_owned())
}

fn too_large() -> Error {
    Error::Damaged("it is too large for its number of bytes".to_owned())
}
